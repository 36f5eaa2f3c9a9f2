"""What `slipstream models show` says about multi-token-prediction heads in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipstream.errors import WeightsError

Json = dict[str, Any]  # Any: JSON values


def head_facts(path: Path, target: Path | None) -> Json | None:
    """Facts by name; None for a checkpoint without heads.

    Args:
        target: Checkpoint that they are compared with, if any; else the one that they lie in.
    Raises:
        WeightsError: A checkpoint cannot be opened, or `target` is no target.
    """
    # Imported here because it brings torch, which the other commands do without.
    import torch

    from slipstream.models.load import read_hparams
    from slipstream.models.mtp.load import describe_heads, misfits
    from slipstream.weights.open import open_checkpoint

    try:
        heads = describe_heads(open_checkpoint(path))
    except WeightsError as error:
        return {"problems": [error.message]}
    if heads is None:
        return None
    fitted = heads.target if target is None else read_hparams(open_checkpoint(target).config)
    return {
        "num_heads": len(heads.layout.heads),
        "layout": heads.layout.name,
        "num_target_layers": heads.layout.num_target_layers,
        "draft_vocab_size": heads.layout.draft_vocab_size or heads.hparams.vocab_size,
        "weight_bytes": 2 * heads.num_parameters,
        "token_matrix_bytes": 2 * heads.num_token_parameters,
        "kv_bytes_per_token": heads.hparams.kv_shape.bytes_per_token(torch.bfloat16),
        "problems": misfits(heads, fitted),
    }


def head_rows(facts: Json) -> list[tuple[str, str]]:
    """The same in words, for a table."""
    problems: list[str] = facts["problems"]
    if "layout" not in facts:
        return [("mtp heads", "; ".join(problems))]
    cost = f"{facts['weight_bytes']} bytes of weights"
    if facts["token_matrix_bytes"]:
        cost += (
            f", {facts['token_matrix_bytes']} more of matrices over tokens unless these repeat the "
            "decoder's"
        )
    return [
        ("mtp heads", f"{facts['num_heads']}, {facts['layout']} layout; drafter kind mtp"),
        ("made for", f"a decoder of {facts['num_target_layers']} layers"),
        ("draft vocabulary", f"{facts['draft_vocab_size']} tokens"),
        ("cost of heads", f"{cost}, {facts['kv_bytes_per_token']} of cache a token, in bfloat16"),
        ("heads fit", "yes" if not problems else f"no: {'; '.join(problems)}"),
    ]
