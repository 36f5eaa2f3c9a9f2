"""Merge rules for a SentencePiece vocabulary, which stores scores instead."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence


def merges_by_score(
    pieces: Mapping[str, int], scores: Sequence[float], lone_letters: Container[str] = ()
) -> list[tuple[str, str]]:
    """All pairs of pieces that join to a piece, in the order in which they are to be merged.

    SentencePiece joins whichever neighbours give the best-scored piece. Several pairs may give one
    piece; they stand together, the pair with the lowest ids first.

    Args:
        pieces: Piece -> id of those that may be merged.
        scores: Of every id; higher merges earlier.
        lone_letters: Letters that are no pieces but may be a part of some.
    Source: `generate_merges` of the transformers library, by which Llama's tokenizer.json was made.
    """
    rated: list[tuple[float, int, int, int, str, str]] = []
    for piece, token_id in pieces.items():
        score = scores[token_id]
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            left_id = pieces.get(left, -1 if left in lone_letters else None)
            right_id = pieces.get(right, -1 if right in lone_letters else None)
            if left_id is not None and right_id is not None:
                rated.append((-score, token_id, left_id, right_id, left, right))
    rated.sort()
    return [(left, right) for *_, left, right in rated]
