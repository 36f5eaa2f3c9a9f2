"""Nets in checkpoints of any layout, as training takes them: all weights in float32."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from slipstream.engine.loading import LoadedModel
from slipstream.errors import WeightsError
from slipstream.models.drafts.hparams import DraftHparams, MtpHparams
from slipstream.models.drafts.load import describe_checkpoint, load_draft, no_drafter
from slipstream.models.drafts.mtp import TARGET_NORM, MtpNet
from slipstream.models.drafts.parts import StoredEnds
from slipstream.models.drafts.vocabulary import read_token_ids
from slipstream.models.mtp.load import MtpCheckpoint, describe_heads, require_fit
from slipstream.weights.checkpoint import Checkpoint

_HEAD, _EMBEDDINGS, _PREFIX = "lm_head.weight", "embed_tokens.weight", "mtp."
_HEAD_LAYOUT = "Qwen"  # whose parts are called what `MtpNet` calls them


@dataclass(frozen=True, slots=True)
class StoredNet:
    """What a checkpoint holds.

    Attributes:
        hparams: Its taps are named.
        parameters: As the net reads them, without what is the target's.
        token_ids: [draft_vocab] int64 target id of each of its tokens; None if it knows all.
    """

    hparams: DraftHparams
    parameters: dict[str, Tensor]
    token_ids: Tensor | None


def describe_net(checkpoint: Checkpoint) -> DraftHparams:
    """The shape of a checkpoint's net, told from its headers; its taps need not be named.

    Raises:
        WeightsError: It holds none, or one that is not supported.
    """
    heads = describe_heads(checkpoint)
    if heads is not None:
        return _head_hparams(checkpoint, heads)
    described = describe_checkpoint(checkpoint)
    if described is None:
        raise no_drafter(checkpoint)
    return described.hparams


def read_net(checkpoint: Checkpoint, target: LoadedModel, ends: StoredEnds) -> StoredNet:
    """Read a checkpoint's net; quantised matrices become what they stand for.

    Raises:
        WeightsError: It holds none, or it does not fit the target.
    """
    heads = describe_heads(checkpoint)
    if heads is not None:
        return _read_head(checkpoint, heads, target)
    net = load_draft(checkpoint, target.model.hparams, ends, torch.float32)
    return StoredNet(net.hparams, dict(net.parameters), net.draft_token_ids)


def _read_head(checkpoint: Checkpoint, heads: MtpCheckpoint, target: LoadedModel) -> StoredNet:
    hparams = _head_hparams(checkpoint, heads)
    require_fit(checkpoint, heads, target.model.hparams)
    shapes = MtpNet.parameter_shapes(hparams)
    del shapes[TARGET_NORM]
    parameters = {name: checkpoint.take(_PREFIX + name).float() for name in shapes}
    for name, tensor in parameters.items():
        if tuple(tensor.shape) != shapes[name]:
            raise WeightsError(
                f"tensor {_PREFIX}{name} of {checkpoint.path} has shape {list(tensor.shape)}; its "
                f"configuration asks for {list(shapes[name])}",
                hint="config.json must be that of the checkpoint that the head is from",
            )
    names = {name: name for name in checkpoint.names() if name in ("d2t", "t2d")}
    token_ids = read_token_ids(checkpoint, names, hparams.body.vocab_size, hparams.draft_vocab_size)
    return StoredNet(hparams, parameters, token_ids)


def _head_hparams(checkpoint: Checkpoint, heads: MtpCheckpoint) -> MtpHparams:
    """As training shapes a head.

    Raises:
        WeightsError: It is one that only serving knows.
    """
    layout, layer = heads.layout, heads.hparams
    is_plain = layer.is_plain and not (
        layer.is_norm_zero_centred or layer.has_sandwich_norms or layer.mlp_bias
    )
    if layout.name != _HEAD_LAYOUT or len(layout.heads) != 1 or not is_plain:
        raise WeightsError(
            f"the multi-token-prediction heads in {checkpoint.path} are of a kind that can be "
            "served and not trained: training knows one head with a plain layer",
            hint="start without --start-from, or from an export of `slipstream train`",
        )
    names = checkpoint.names()
    body = replace(layer, family="draft", has_tied_embeddings=False, embedding_scale=None)
    return MtpHparams(
        body=body,
        target_hidden_size=layer.hidden_size,
        num_taps=1,
        tap_layer_ids=(layout.num_target_layers - 1,),
        draft_vocab_size=layout.draft_vocab_size or layer.vocab_size,
        has_own_embeddings=_PREFIX + _EMBEDDINGS in names,
        has_own_head=_PREFIX + _HEAD in names,
        recycles_normed=True,
    )
