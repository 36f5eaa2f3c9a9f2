"""The draft net of a run: its weights, what is optimised of them, its copies."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipstream.models.drafts.hparams import DraftHparams
from slipstream.models.drafts.initial import initial_parameters
from slipstream.models.drafts.load import AnyDraftNet, net_class_of
from slipstream.models.drafts.parts import StoredEnds
from slipstream.models.hparams import Hparams
from slipstream.training.attention import attend_bfloat16
from slipstream.training.families.family import HEAD
from slipstream.training.families.table import FAMILIES, family_for
from slipstream.training.objective import DraftIds, Objective
from slipstream.training.settings import NetSettings, RunSettings
from slipstream.training.start import Start

_KEPT = (  # no product reads them
    "norm.weight", "norm_embedding.weight", "norm_hidden.weight", "base_kernel",
)  # fmt: skip
_ADDING = ("o_proj.weight", "down_proj.weight")  # what a layer adds to the residual stream


@dataclass(frozen=True, slots=True)
class TrainedNet:
    """A draft net whose weights are optimised.

    Attributes:
        parameters: Name -> float32 tensor; those that are trained require a gradient.
        ends: The target's embeddings and head.
        token_ids: [draft_vocab] int64 target id of each of its tokens; None if it knows all.
        tap_scales: [taps * hidden] float32; the parameter `fc.weight` is for taps divided by it,
            where the family's nets read taps as they are.
    """

    hparams: DraftHparams
    parameters: dict[str, Tensor]
    ends: StoredEnds
    token_ids: Tensor | None
    tap_scales: Tensor

    def known_ids(self) -> Tensor:
        """[draft_vocab] int64 target ids of the tokens that it knows, ascending."""
        if self.token_ids is None:
            return torch.arange(self.hparams.draft_vocab_size)
        return self.token_ids

    def trained(self) -> dict[str, Tensor]:
        """The parameters that are optimised, in a fixed order."""
        return {name: p for name, p in sorted(self.parameters.items()) if p.requires_grad}

    def as_run(self) -> dict[str, Tensor]:
        """The parameters as the net reads them, in float32."""
        return family_for(self.hparams).as_run(self.parameters, self.tap_scales)

    def rescaled(self, tap_scales: Tensor) -> TrainedNet:
        """The same net, to be optimised for taps that are divided by these scales."""
        if torch.equal(tap_scales, self.tap_scales):
            return self
        parameters = family_for(self.hparams).as_trained(self.as_run(), tap_scales)
        return replace(self, parameters=parameters, tap_scales=tap_scales)

    def stored(self) -> dict[str, Tensor]:
        """What a checkpoint of the net must hold, by its name there, in float32."""
        is_reduced = self.token_ids is not None
        return family_for(self.hparams).stored(self.as_run(), is_reduced=is_reduced)

    def stored_hparams(self) -> DraftHparams:
        """What that checkpoint says of the net."""
        return replace(self.hparams, has_own_head=HEAD in self.stored())

    def objective(self, settings: RunSettings) -> Objective:
        """What a run with `settings` minimises."""
        ids = DraftIds(self.token_ids, self.hparams.body.vocab_size)
        return family_for(self.hparams).objective(settings, ids)

    def copy_in(self, dtype: torch.dtype) -> AnyDraftNet:
        """A net to run, its products in `dtype`; gradients reach the parameters."""
        rounded = {
            name: p if name.endswith(_KEPT) else p.to(dtype) for name, p in self.as_run().items()
        }
        net_class = net_class_of(self.hparams)
        attention = attend_bfloat16 if dtype == torch.bfloat16 else None
        return net_class(self.hparams, rounded, self.ends, self.token_ids, attention=attention)


def new_net(settings: NetSettings, target: Hparams, start: Start, seed: int) -> TrainedNet:
    """A net to start from: the target's head behind layers that its family has set.

    Raises:
        ConfigError: The target cannot have such a net.
    """
    family = FAMILIES[settings.family]
    hparams = family.hparams(settings, target)
    parameters = _bare_parameters(hparams, start, seed)
    family.start(parameters, hparams, start)
    return net_of(hparams, parameters, start, trains_head=settings.trains_head)


def bare_net(hparams: DraftHparams, settings: NetSettings, start: Start, seed: int) -> TrainedNet:
    """A net at random, but for what it has of the target: the weights are still to come."""
    parameters = _bare_parameters(hparams, start, seed)
    return net_of(hparams, parameters, start, trains_head=settings.trains_head)


def net_of(
    hparams: DraftHparams, parameters: dict[str, Tensor], start: Start, *, trains_head: bool
) -> TrainedNet:
    """A net of these weights, which are taken as they are.

    Args:
        parameters: As they are optimised: `fc.weight` is for divided taps.
    """
    kept = set(family_for(hparams).constants(start)) | (set() if trains_head else {HEAD})
    for name, parameter in parameters.items():
        parameter.requires_grad_(name not in kept)
    fixed = start.fixed
    token_ids = fixed.token_ids if hparams.is_reduced else None
    return TrainedNet(hparams, parameters, start.ends, token_ids, fixed.tap_scales)


def grow(smaller: TrainedNet, settings: NetSettings, start: Start, seed: int) -> TrainedNet:
    """A net that begins with the weights of one that is as large or smaller; see `take_over`.

    Args:
        settings: Its layers, tokens and width of the MLP; all else is as in `smaller`.
    Raises:
        ConfigError: The family has no such net.
    """
    hparams = family_for(smaller.hparams).grown(smaller.hparams, settings)
    net = bare_net(hparams, settings, start, seed)
    take_over(net, smaller.rescaled(start.fixed.tap_scales))
    return net


def take_over(net: TrainedNet, smaller: TrainedNet) -> None:
    """Give a net the weights of one that has a narrower MLP, fewer layers or fewer tokens at most.

    Both compute the same: new channels are read by nothing yet, new layers add nothing, and the
    rest of them starts at random. Only new tokens take part at once: their rows of the head are
    the target's, made as large as those that were trained.
    """
    known = smaller.parameters
    of_tokens = family_for(net.hparams).of_tokens
    places = torch.searchsorted(net.known_ids(), smaller.known_ids())
    with torch.no_grad():
        for name, grown in net.parameters.items():
            if name not in known:
                if name.endswith(_ADDING):
                    grown.zero_()
                continue
            old = known[name]
            if name in of_tokens:
                if name == HEAD:
                    grown.mul_(_scale_to(grown[places], old))
                grown[places] = old
                continue
            if old.ndim == 2:
                grown[:, old.shape[1] :] = 0.0
            grown[tuple(map(slice, old.shape))] = old


def _bare_parameters(hparams: DraftHparams, start: Start, seed: int) -> dict[str, Tensor]:
    parameters = initial_parameters(hparams, torch.Generator().manual_seed(seed))
    if hparams.body.hidden_size == hparams.target_hidden_size:
        parameters[HEAD] = start.ends.vocabulary[start.fixed.token_ids].float()
    return parameters | family_for(hparams).constants(start)


def _scale_to(rows: Tensor, trained: Tensor) -> Tensor:
    """The factor of `rows` that brings them nearest to what became of them."""
    return (rows * trained).sum() / rows.square().sum()
