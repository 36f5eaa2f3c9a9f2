"""How a checkpoint's matrices would be multiplied on this machine, told without reading them.

No torch: `slipstream models show` asks this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slipstream.kernels.library import KernelLibrary, KernelsUnavailableError
from slipstream.kernels.structs import FORMATS

HEAD_LEN_STEP = 16
_PLAIN = frozenset({"BF16", "F16", "F32", "I32", "I64"})  # whole numbers are maps of tokens


@dataclass(frozen=True, slots=True)
class Serving:
    """Who multiplies, and what.

    Attributes:
        kernels: "native (amx)", "native products" and what torch does between them, or "torch"
            and why.
        as_stored: Block formats that are multiplied as they are stored.
        widened: Block formats whose values are held in 2 or 4 bytes each.
        activations: How rows enter products with blocks as stored; None where nothing takes what
            is set, so that loading refuses it.
    """

    kernels: str
    as_stored: tuple[str, ...]
    widened: tuple[str, ...]
    activations: str | None


def foresee_serving(
    formats: Mapping[str, int],
    head_dim: int | None,
    dtype: str,
    activations: str = "auto",
    special_parts: Sequence[str] = (),
) -> Serving:
    """What loading would choose.

    Args:
        formats: Storage types of the checkpoint, GGUF's names.
        head_dim: Values of one attention head; None if the checkpoint does not say.
        dtype: The setting `model.dtype`; activations: `model.activations`.
        special_parts: What the native pass has no kernel for.
    """
    is_int8 = activations == "int8"
    blocks = tuple(name for name in formats if name.upper() not in _PLAIN)
    reason = _obstacle(head_dim, dtype)
    if reason is None:
        try:
            isa = KernelLibrary().isa_name
        except KernelsUnavailableError as error:
            reason = f"{error}; {error.hint}"
        else:
            held = tuple(name for name in blocks if name in FORMATS)
            widened = tuple(name for name in blocks if name not in FORMATS)
            chosen = "int8" if is_int8 else "bfloat16"
            kernels = f"native ({isa})"
            if special_parts:
                kernels = f"native products ({isa}); {torch_between(special_parts)}"
            return Serving(kernels, held, widened, chosen if held or not is_int8 else None)
    fallback = None if is_int8 else "float32" if dtype == "float32" else "bfloat16"
    return Serving(f"torch, several times slower: {reason}", (), blocks, fallback)


def torch_between(special_parts: Sequence[str]) -> str:
    """What it means that a model has parts which the native pass has no kernel for."""
    return (
        f"torch computes what is between them, slower than a native pass, which has no kernel yet "
        f"for {' and '.join(special_parts)}"
    )


def _obstacle(head_dim: int | None, dtype: str) -> str | None:
    if dtype == "float32":
        return "native kernels compute in bfloat16, and model.dtype is float32"
    if head_dim is not None and head_dim % HEAD_LEN_STEP:
        return head_obstacle(head_dim)
    return None


def head_obstacle(head_dim: int) -> str:
    """Why attention with heads of `head_dim` values does not fit the native kernels."""
    return (
        f"native kernels take heads of a multiple of {HEAD_LEN_STEP} values, and these have "
        f"{head_dim}"
    )
