"""What one family's training has of its own: the questions that all of the rest asks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from slipstream.models.drafts.hparams import DraftFamily, DraftHparams
from slipstream.models.hparams import Hparams, LayerParams, RotaryParams
from slipstream.models.identity import TargetIdentity
from slipstream.training.objective import DraftIds, Objective
from slipstream.training.settings import LossSettings, NetSettings, RunSettings
from slipstream.training.start import Start
from slipstream.training.target import require_layers
from slipstream.weights.names import gguf_draft_name

HEAD = "lm_head.weight"
FUSION = "fc.weight"
NORM = "norm.weight"
NORM_SHARE = 0.3  # of the target's: drafts that are sure of nothing learn faster than wrong ones
NOISE_SHARE = 0.3  # of the usual random start of `fc`, around what is set in it

Json = dict[str, Any]  # Any: JSON
GgufValue = bool | int | float | list[int]
H = TypeVar("H", bound=DraftHparams)


class TrainingFamily(ABC, Generic[H]):
    """How nets of one family are made, started, trained and stored.

    What is here is common to most. A family that differs says so in its own module, and that
    module's object has its place in `table.FAMILIES`.

    Attributes:
        name: The nets' family.
        num_layers, max_draft_len: Where the command does not say.
        losses: That learn fast; docs/log.md says where they differ from the family's paper.
        of_tokens: Parameters with a row for each token that the draft knows.
        has_qk_norm: Whether queries and keys are normalised.
        model_type, architecture: What config.json calls the layers and the net.
        speculators_name: The net in the `speculators` format.
        gguf_architecture: llama.cpp's name for it.
        has_paired_rotary: Whether llama.cpp rotates neighbours in queries and keys, as in Llama.
    """

    name: ClassVar[DraftFamily]
    num_layers: ClassVar[int]
    max_draft_len: ClassVar[int]
    losses: ClassVar[LossSettings]
    of_tokens: ClassVar[frozenset[str]] = frozenset({HEAD})
    has_qk_norm: ClassVar[bool]
    model_type: ClassVar[str]
    architecture: ClassVar[str]
    speculators_name: ClassVar[str]
    gguf_architecture: ClassVar[str]
    has_paired_rotary: ClassVar[bool]

    @abstractmethod
    def hparams(self, settings: NetSettings, target: Hparams) -> H:
        """The net's shape: as wide as the target, with its heads and rotary base.

        Raises:
            ConfigError: The target cannot have such a net.
        """

    def settings_of(self, hparams: H) -> dict[str, Any]:
        """Fields of `NetSettings` that a net's shape decides. Any: they have different types."""
        return {
            "family": self.name,
            "num_layers": hparams.body.num_layers,
            "tap_layer_ids": hparams.tap_layer_ids,
            "draft_vocab_size": hparams.draft_vocab_size,
            "intermediate_size": hparams.body.intermediate_size,
        }

    def grown(self, hparams: H, settings: NetSettings) -> H:
        """The same net with the layers, tokens and width of the MLP that the settings ask for.

        Raises:
            ConfigError: The family has no such net.
        """
        layers = hparams.body.layers
        body = replace(
            hparams.body,
            intermediate_size=settings.intermediate_size,
            layers=layers + layers[-1:] * (settings.num_layers - len(layers)),
        )
        return replace(hparams, body=body, draft_vocab_size=settings.draft_vocab_size)

    def require_trainable(self, hparams: H) -> None:
        """Refuse a net that the objective does not compute as a server does.

        Raises:
            WeightsError: Says what it has that training lacks.
        """

    def constants(self, start: Start) -> dict[str, Tensor]:
        """Parameters that are the target's, and are never optimised."""
        return {}

    @abstractmethod
    def objective(self, settings: RunSettings, ids: DraftIds) -> Objective:
        """What a run minimises."""

    def tap_layer_ids(self, num_target_layers: int) -> tuple[int, ...]:
        """Layers of the target that are read where neither command nor cache says which."""
        return spread_taps(num_target_layers)

    def start(self, parameters: dict[str, Tensor], hparams: H, start: Start) -> None:
        """Set first weights, in random ones behind the target's head.

        What the net reads is at first the deepest tap, nearly as it is, since the target's own head
        already reads a token from it; and the norm in front of the head is smaller than the
        target's.

        Args:
            parameters: As they are optimised: `fc.weight` is for divided taps.
        """
        parameters[NORM] = start.final_norm * NORM_SHARE
        parameters[FUSION] = parameters[FUSION] * NOISE_SHARE
        _add_deepest_tap(parameters[FUSION], start.fixed.tap_scales)

    def as_run(self, parameters: Mapping[str, Tensor], tap_scales: Tensor) -> dict[str, Tensor]:
        """Parameters as the net reads them, from those that are optimised.

        Args:
            tap_scales: [taps * hidden] by which what is optimised expects taps to be divided.
        """
        return {**parameters, FUSION: parameters[FUSION] / tap_scales}

    def as_trained(self, parameters: Mapping[str, Tensor], tap_scales: Tensor) -> dict[str, Tensor]:
        """The way back from `as_run`."""
        return {**parameters, FUSION: parameters[FUSION] * tap_scales}

    def stored(self, parameters: Mapping[str, Tensor], *, is_reduced: bool) -> dict[str, Tensor]:
        """What a checkpoint must hold, by its name there.

        A head that is the target's own is left out.

        Args:
            parameters: As the net reads them.
            is_reduced: Whether the net knows only some of the target's tokens.
        """
        is_shared = not is_reduced and not parameters[HEAD].requires_grad
        return {name: p for name, p in parameters.items() if name != HEAD or not is_shared}

    def require_layout(self, layout: str) -> None:
        """Refuse a layout that cannot express such nets.

        Raises:
            ConfigError: Names the one that can.
        """

    @abstractmethod
    def config_fields(self, hparams: H, target: TargetIdentity) -> Json:
        """Fields of config.json in our layout, beside those of a decoder; they win."""

    @abstractmethod
    def speculators_fields(self, hparams: H) -> Json:
        """Fields of its own in the `speculators` format.

        Layers are named by their inputs there: one more than in this package.
        """

    @abstractmethod
    def served_draft_len(self, hparams: H) -> int:
        """Drafts that a server should ask for."""

    def gguf_keys(self, hparams: H) -> dict[str, GgufValue]:
        """Keys in llama.cpp's layout, beside those of a decoder; they win.

        Raises:
            ConfigError: The layout cannot express the net.
        """
        return {
            f"{self.gguf_architecture}.target_hidden_size": hparams.target_hidden_size,
            f"{self.gguf_architecture}.target_layers": layer_inputs(hparams),
        }

    def gguf_name(self, name: str, hparams: H) -> str:
        """What a stored parameter is called in llama.cpp's layout."""
        return gguf_draft_name(name)

    def _common(self, settings: NetSettings, target: Hparams) -> dict[str, Any]:
        """Fields of `DraftHparams`. Any: they have different types.

        Raises:
            ConfigError: Taps that the target lacks.
        """
        taps = settings.tap_layer_ids
        require_layers(taps, target.num_layers)
        rotary = RotaryParams(max(layer.rotary.theta for layer in target.layers))
        body = replace(
            target,
            family="draft",
            intermediate_size=settings.intermediate_size,
            activation="silu",
            has_tied_embeddings=False,
            attention_scale=target.head_dim**-0.5,
            layers=(LayerParams(None, rotary),) * settings.num_layers,
            qkv_bias=False,
            output_bias=False,
            mlp_bias=False,
            has_qk_norm=self.has_qk_norm,
            is_norm_zero_centred=False,
            has_sandwich_norms=False,
            embedding_scale=None,
            weights_prefix="model",
            latent=None,
            partial_rotary_dim=None,
            has_output_gate=False,
        )
        return {
            "body": body,
            "target_hidden_size": target.hidden_size,
            "num_taps": len(taps),
            "tap_layer_ids": taps,
            "draft_vocab_size": settings.draft_vocab_size,
            "has_own_embeddings": False,
            "has_own_head": True,
        }


AnyFamily = TrainingFamily[Any]  # Any: hyperparameters of one of the families


def spread_taps(num_target_layers: int) -> tuple[int, ...]:
    """Three layers over the depth of the target, fewer if it is shallow."""
    layers = (num_target_layers // 6, num_target_layers // 2 - 1, max(num_target_layers - 4, 0))
    return tuple(sorted(set(layers)))


def layer_inputs(hparams: DraftHparams) -> list[int]:
    """The taps as layouts name them that count the layers which read them."""
    return [layer + 1 for layer in hparams.tap_layer_ids or ()]


def _add_deepest_tap(fusion: Tensor, tap_scales: Tensor) -> None:
    """Let `fusion`, [hidden, taps * target hidden] for divided taps, pass the last tap through."""
    width = min(fusion.shape[0], fusion.shape[1])
    scales = tap_scales[-width:]
    fusion[:width, -width:] += torch.diag(scales / scales.square().mean().sqrt())
