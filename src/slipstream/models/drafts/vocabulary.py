"""Which of the target's tokens a draft net knows, where it does not know all."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from slipstream.errors import WeightsError
from slipstream.weights.checkpoint import Checkpoint

_ID_TYPES = (torch.int32, torch.int64)


def read_token_ids(
    checkpoint: Checkpoint, names: Mapping[str, str], vocab_size: int, draft_vocab_size: int
) -> Tensor | None:
    """[draft_vocab] target ids of the draft's tokens; None where the checkpoint has no map.

    Args:
        names: Of `d2t` (and of `t2d`, which is then checked too) in the checkpoint.
        vocab_size: The target's.
    Raises:
        WeightsError: The map cannot be one.
    """
    known = checkpoint.take(names["t2d"]).bool() if "t2d" in names else None
    if "d2t" not in names:
        return None
    tensor = checkpoint.take(names["d2t"])
    if tensor.dtype not in _ID_TYPES:
        raise WeightsError(
            f"tensor d2t is of type {str(tensor.dtype).removeprefix('torch.')}; it holds ids of "
            "tokens, which must be int32 or int64",
            hint="it was cast with the weights, which rounds ids: export the drafter again",
        )
    stored = tensor.long()
    if stored.shape != (draft_vocab_size,):
        raise WeightsError(
            f"tensor d2t has shape {list(stored.shape)}, but draft_vocab_size is {draft_vocab_size}"
        )
    places = torch.arange(len(stored))
    is_absolute = checkpoint.gguf_metadata is not None
    token_ids, other_ids = stored, stored + places
    if not is_absolute:
        token_ids, other_ids = other_ids, token_ids
    problem = _vocabulary_problem(token_ids, vocab_size, known)
    if problem is not None:
        is_meant = _vocabulary_problem(other_ids, vocab_size, known) is None
        ways = ("target ids", "offsets to add to places")
        held, wanted = ways[::-1] if is_absolute else ways
        raise WeightsError(
            f"tensor d2t {problem}",
            hint=f"it holds {held}, and this layout stores {wanted}: convert it"
            if is_meant
            else None,
        )
    return token_ids


def _vocabulary_problem(token_ids: Tensor, vocab_size: int, known: Tensor | None) -> str | None:
    """Why these cannot be the target ids of a draft's tokens; None if they can."""
    if token_ids.min() < 0 or token_ids.max() >= vocab_size:
        return f"names tokens outside the vocabulary of {vocab_size}"
    if len(torch.unique(token_ids)) != len(token_ids):
        return "names a token twice"
    if known is not None:
        expected = torch.zeros(vocab_size, dtype=torch.bool)
        expected[token_ids] = True
        if not torch.equal(known, expected):
            return "disagrees with t2d about which tokens the drafter knows"
    return None
