"""From a draft checkpoint to a net that fits a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.kernels.library import KernelLibrary
from slipstream.kernels.matrix import StoredWeight, can_hold
from slipstream.models.drafts.calibration import calibrated
from slipstream.models.drafts.dflash import DFlashNet
from slipstream.models.drafts.dflash2 import DFlash2Net
from slipstream.models.drafts.dspark import DSparkNet
from slipstream.models.drafts.eagle3 import Eagle3Net
from slipstream.models.drafts.hparams import (
    DFlashHparams,
    DraftFamily,
    DraftHparams,
    default_tap_layer_ids,
    family_of,
)
from slipstream.models.drafts.mtp import MtpNet
from slipstream.models.drafts.net import DraftNet
from slipstream.models.drafts.packed import PackedProducts
from slipstream.models.drafts.parts import TokenEnds
from slipstream.models.drafts.read import MATRIX_AXES, DraftCheckpoint, Shapes, describe_draft
from slipstream.models.drafts.vocabulary import read_token_ids
from slipstream.models.hparams import Hparams
from slipstream.weights.checkpoint import Checkpoint

AnyDraftNet = DraftNet[Any]  # Any: hyperparameters of one of the families

_MAX_NAMED = 8
_MASK_FILE = "mask_embedding.pt"  # as Xiaomi's MiMo publishes its drafters

_NETS: Mapping[DraftFamily, type[AnyDraftNet]] = {
    "eagle3": Eagle3Net,
    "mtp": MtpNet,
    "dflash": DFlashNet,
    "dflash2": DFlash2Net,
    "dspark": DSparkNet,
}


def load_draft(
    checkpoint: Checkpoint,
    target: Hparams,
    ends: TokenEnds,
    dtype: torch.dtype,
    kernels: KernelLibrary | None = None,
) -> AnyDraftNet:
    """Read a draft checkpoint into a net that reads the taps of `target`.

    Args:
        ends: The target's embeddings and head.
        dtype: Type of the parameters.
        kernels: Multiply, if the type is bfloat16; matrices in blocks that they know stay in them.
    Raises:
        WeightsError: It is no drafter, does not fit the target, or tensors are missing, left over
            or of the wrong shape.
    """
    described = describe_checkpoint(checkpoint)
    if described is None:
        raise no_drafter(checkpoint)
    if described.problems:
        raise WeightsError(
            f"{checkpoint.path} is no whole drafter: {'; '.join(_shortened(described.problems))}",
            hint="the weights do not fit the configuration, or a shard is missing",
        )
    problems = misfits(described, target)
    if problems:
        raise WeightsError(
            f"{checkpoint.path} does not fit the target: {'; '.join(problems)}",
            hint="use a drafter that was made for this target",
        )
    hparams = with_taps(described.hparams, target.num_layers)
    hparams = calibrated(hparams, checkpoint.path)
    net_class = net_class_of(hparams)
    names = described.layout.names
    shapes = net_class.parameter_shapes(hparams)
    products = None
    if kernels is not None and dtype == torch.bfloat16:
        matrices = {name for name in shapes if _is_of_product(name, shapes)}
        stored = {name: _take_stored(checkpoint, names, name, shapes[name]) for name in matrices}
        products = PackedProducts(
            kernels, {name: stored[name] for name in shapes if name in stored}
        )
        shapes = {name: shape for name, shape in shapes.items() if name not in stored}
    parameters = {
        name: _take(checkpoint, names, name, shape, dtype) for name, shape in shapes.items()
    }
    token_ids = read_token_ids(checkpoint, names, hparams.body.vocab_size, hparams.draft_vocab_size)
    checkpoint.finish()
    return net_class(hparams, parameters, ends, token_ids, products)


def packed_products(
    kernels: KernelLibrary, parameters: Mapping[str, Tensor]
) -> tuple[PackedProducts, dict[str, Tensor]]:
    """Matrices of a net in memory as products, and the parameters that are none."""
    shapes = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    stored = {name: item for name, item in parameters.items() if _is_of_product(name, shapes)}
    rest = {name: item for name, item in parameters.items() if name not in stored}
    return PackedProducts(kernels, stored), rest


def no_drafter(checkpoint: Checkpoint) -> WeightsError:
    """What to raise where a checkpoint should be a drafter's."""
    return WeightsError(
        f"{checkpoint.path} holds no drafter: it has no tensor fc.weight",
        hint="a whole model drafts as kind draft_model",
    )


def describe_checkpoint(checkpoint: Checkpoint) -> DraftCheckpoint | None:
    """As `describe_draft`, of an open checkpoint, with what is wrong with its tensors."""
    shapes = {name: checkpoint.shape(name) for name in checkpoint.names()}
    is_gguf = checkpoint.gguf_metadata is not None
    described = describe_draft(checkpoint.config, shapes, is_gguf=is_gguf)
    if described is None:
        return None
    if isinstance(described.hparams, DFlashHparams):
        _require_mask_of_target(checkpoint.path)
    return replace(described, problems=tuple(_problems_of(described, shapes)))


def _require_mask_of_target(path: Path) -> None:
    """Refuse a block drafter whose mask is no token's embedding, but one in a file of its own."""
    file = (path if path.is_dir() else path.parent) / _MASK_FILE
    if file.exists():
        raise WeightsError(
            f"{file} holds an embedding for the mask token that replaces the target's; it is "
            "pickled, and pickled weights are never read",
            hint="use a drafter whose mask is a token of the target's",
        )


def _problems_of(draft: DraftCheckpoint, shapes: Shapes) -> list[str]:
    """What reading the net would refuse, told from the shapes of the stored tensors."""
    hparams, names = draft.hparams, draft.layout.names
    wanted = net_class_of(hparams).parameter_shapes(hparams)
    problems = [f"there is no tensor {name}" for name in wanted if name not in names]
    wanted |= {"d2t": (hparams.draft_vocab_size,)}
    problems += [
        f"tensor {stored} has shape {list(shapes[stored])}, but config.json asks for "
        f"{list(wanted[name])}"
        for name, stored in names.items()
        if name in wanted and shapes[stored] != wanted[name]
    ]
    strays = [stored for name, stored in names.items() if name not in (*wanted, "t2d")]
    return [*problems, *(f"nothing reads tensor {stored}" for stored in strays)]


def _shortened(problems: Sequence[str]) -> list[str]:
    more = len(problems) - _MAX_NAMED
    return [*problems[:_MAX_NAMED], *([f"and {more} more like these"] if more > 0 else [])]


def net_class_of(hparams: DraftHparams) -> type[AnyDraftNet]:
    """The net that these hyperparameters are for."""
    return _NETS[family_of(hparams)]


def with_taps(hparams: DraftHparams, num_target_layers: int) -> DraftHparams:
    """The same with taps that are named."""
    if hparams.tap_layer_ids is not None:
        return hparams
    return replace(hparams, tap_layer_ids=default_tap_layer_ids(hparams, num_target_layers))


def misfits(draft: DraftCheckpoint, target: Hparams) -> list[str]:
    """Why a drafter cannot serve a target, in words; nothing where it can."""
    hparams, body = draft.hparams, draft.hparams.body
    problems = _shortened(draft.problems)
    if hparams.target_hidden_size != target.hidden_size:
        problems.append(
            f"its taps have {hparams.target_hidden_size} values, the target's states "
            f"{target.hidden_size}"
        )
    if body.vocab_size != target.vocab_size:
        problems.append(
            f"its vocabulary has {body.vocab_size} tokens, the target's {target.vocab_size}"
        )
    if draft.num_target_layers not in (None, target.num_layers):
        problems.append(
            f"it was made for a target of {draft.num_target_layers} layers, this one has "
            f"{target.num_layers}"
        )
    taps = with_taps(hparams, target.num_layers).tap_layer_ids or ()
    missing = sorted({layer for layer in taps if not -1 <= layer < target.num_layers})
    if missing:
        problems.append(
            f"it taps layers {missing}, the target has layers 0 to {target.num_layers - 1}"
        )
    if len(set(taps)) != len(taps):
        problems.append(f"it taps a layer twice ({list(taps)}): the target has too few layers")
    has_own_ends = hparams.has_own_embeddings and hparams.has_own_head
    if not has_own_ends and body.hidden_size != target.hidden_size:
        problems.append(
            f"it is {body.hidden_size} wide and lacks embeddings or a head of its own, so it "
            f"needs a target of that width, not of {target.hidden_size}"
        )
    return problems


def _is_of_product(name: str, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a parameter is a matrix that rows are multiplied with, or the bias of one."""
    if name.endswith(".bias"):
        name = f"{name.removesuffix('.bias')}.weight"
    return name.endswith(".weight") and len(shapes[name]) == MATRIX_AXES


def _take_stored(
    checkpoint: Checkpoint, names: Mapping[str, str], name: str, shape: tuple[int, ...]
) -> StoredWeight:
    """As `_take`, in blocks where the kernels know them."""
    own_name = names.get(name, name)
    if len(shape) == MATRIX_AXES and checkpoint.shape(own_name) == shape:
        blocks = checkpoint.raw(own_name)
        if blocks is not None:
            if can_hold(blocks):
                return blocks
            return torch.from_numpy(blocks.dequantize()).bfloat16()
    return _take(checkpoint, names, name, shape, torch.bfloat16)


def _take(
    checkpoint: Checkpoint,
    names: Mapping[str, str],
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> Tensor:
    tensor = checkpoint.take(names.get(name, name))
    if tuple(tensor.shape) != shape:
        raise WeightsError(
            f"tensor {names[name]} has shape {list(tensor.shape)}, but config.json asks for "
            f"{list(shape)}"
        )
    if not tensor.is_floating_point():
        raise WeightsError(
            f"tensor {names[name]} is of type {str(tensor.dtype).removeprefix('torch.')}; weights "
            "are read as float32, float16, bfloat16 or GGUF blocks",
            hint="convert the checkpoint to one of these",
        )
    return tensor.to(dtype)
