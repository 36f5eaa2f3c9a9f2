"""Which tokens a draft net knows: those that its target says most often."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from slipstream.errors import ConfigError
from slipstream.training.answers import Answer


def count_tokens(
    answers: Iterable[Answer], vocab_size: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """[vocab] how often each token occurs in the answers."""
    counts = np.zeros(vocab_size, np.int64)
    for answer in answers:
        np.add.at(counts, np.array(answer.response_ids, dtype=np.int64), 1)
    return counts


def select_draft_tokens(
    answers: Sequence[Answer], vocab_size: int, size: int, always: Iterable[int] = ()
) -> Tensor:
    """The `size` most frequent tokens of the answers, ascending.

    Args:
        always: Tokens that are taken in any case, such as the end of a turn.
    Returns: [size] int64; ties go to the lower token.
    Raises:
        ConfigError: The vocabulary has fewer tokens.
    """
    if not 1 <= size <= vocab_size:
        raise ConfigError(
            f"--draft-vocab must be 1 to {vocab_size}, the target's vocabulary; got {size}"
        )
    counts = count_tokens(answers, vocab_size)
    counts[list(always)] = np.iinfo(np.int64).max
    order = np.argsort(-counts, kind="stable")
    return torch.from_numpy(np.sort(order[:size]))


def coverage(answers: Iterable[Answer], token_ids: Tensor, vocab_size: int) -> float:
    """Share of the answers' tokens that are among `token_ids`."""
    counts = count_tokens(answers, vocab_size)
    total = int(counts.sum())
    return float(counts[token_ids.numpy()].sum()) / total if total else 0.0


def unused_token(answers: Iterable[Answer], vocab_size: int) -> int:
    """The lowest token that occurs neither in prompts nor in answers; a mask means nothing else.

    Raises:
        ConfigError: Every token occurs.
    """
    is_used = np.zeros(vocab_size, bool)
    for answer in answers:
        is_used[list(answer.prompt_ids)] = True
        is_used[list(answer.response_ids)] = True
    unused = np.flatnonzero(~is_used)
    if len(unused) == 0:
        raise ConfigError(
            "every token of the vocabulary occurs in the data, so none is free to stand for a mask",
            hint="name a rare one with --mask-token",
        )
    return int(unused[0])
