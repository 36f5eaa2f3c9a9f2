"""What a block drafter computed, as arrays under the names of the recordings."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.audit.block_replay import AnyBlockNet, BlockReplay, Round, Walk
from slipstream.audit.fixture import Check
from slipstream.audit.recorded import Recorded, close
from slipstream.models.drafts.dflash2 import DFlash2Net, convolve
from slipstream.speculation.rejection import acceptance_probs, dense_probs, residual_probs

_CONVOLUTIONS = {"attn": "attention_conv", "mlp": "mlp_conv"}
_SIDES = ("pre", "post")


def round_arrays(net: AnyBlockNet, rounds: Sequence[Round]) -> dict[str, Tensor]:
    """Arrays with one entry per round."""
    arrays = [_arrays_of(net, item) for item in rounds]
    num_drafts = net.hparams.max_draft_len
    stacked = {name: torch.stack([item[name] for item in arrays]) for name in arrays[0]}
    verified = torch.full((len(rounds), num_drafts + 1), -1)
    margins = torch.full((len(rounds), num_drafts + 1), -1.0)
    for row, item in enumerate(rounds):
        count = item.num_proposed + 1
        verified[row, :count] = item.target_logits.argmax(-1)
        margins[row, :count] = _margin(item.target_logits)
    return stacked | {"target_argmax": verified, "target_margin": margins}


def sampled_arrays(
    replay: BlockReplay, path: Sequence[int], temperature: float
) -> dict[str, Tensor]:
    """What a block offers at a temperature along a path, and what the target makes of it."""
    walk = replay.walk(replay.draft(), path)
    scores = torch.stack([choices.logits for choices in walk.choices])
    token_ids = torch.stack([choices.token_ids for choices in walk.choices])
    probs = (scores / temperature).softmax(-1)
    target_probs = (replay.target_logits(path) / temperature).softmax(-1)
    draft_probs = dense_probs(token_ids.numpy(), probs.numpy(), target_probs.shape[-1])
    judged = target_probs[:-1].numpy()
    accepted = torch.from_numpy(acceptance_probs(judged, draft_probs))
    arrays = {
        "candidate_ids": token_ids,
        "q": probs,
        "markov_logits": scores,
        "target_probs": target_probs,
        "accept_prob": accepted.gather(-1, torch.tensor(path).unsqueeze(-1)).squeeze(-1),
        "residual": torch.from_numpy(residual_probs(judged, draft_probs)),
    }
    if walk.confidence is not None:
        arrays["confidence_logits"] = walk.confidence
    return arrays


def conv_checks(net: AnyBlockNet, recorded: Recorded, bound: float) -> list[Check]:
    """Each recorded convolution recomputed from its recorded input."""
    checks: list[Check] = []
    if not isinstance(net, DFlash2Net):
        return checks
    for prefix in recorded.prefixes("pre.in"):
        match = re.fullmatch(r".*\.L(\d+)\.(attn|mlp)\.", prefix)
        if match is None:
            continue
        arrays = recorded.below(prefix)
        name = f"layers.{match[1]}.{_CONVOLUTIONS[match[2]]}"
        with torch.inference_mode():
            kernels = net.kernels(name, arrays["pre.in"])
            for side, place in enumerate(_SIDES):
                output = convolve(arrays[f"{place}.in"], kernels[:, side])
                checks.append(close(f"{prefix}{place}.out", output, arrays[f"{place}.out"], bound))
    return checks


def _arrays_of(net: AnyBlockNet, item: Round) -> dict[str, Tensor]:
    walk, rows = item.walk, item.rows
    scores = torch.stack([choices.logits for choices in walk.choices])
    num_rows = rows.hidden.shape[1]
    arrays = {
        "start": torch.tensor(item.start),
        "n_new_context": torch.tensor(item.num_new_context),
        "noise_ids": net.block_tokens(torch.tensor(item.anchor), num_rows),
        "block": torch.tensor([item.anchor, *walk.tokens]),
        "draft_tokens": torch.tensor(walk.tokens),
        "n_proposed": torch.tensor(item.num_proposed),
        "accept_len": torch.tensor(item.accepted_len),
        "bonus": torch.tensor(item.bonus),
        "draft_hidden": rows.hidden[0],
        "draft_logits": rows.logits[0],
        "base_logits": rows.logits[0],
        "markov_logits": scores,
        "draft_margin": _margin(scores),
    }
    if walk.confidence is not None:
        arrays["confidence_logits"] = walk.confidence
    if isinstance(net, DFlash2Net):
        arrays |= _selector_arrays(net, item, walk, scores)
    return arrays


def _selector_arrays(net: DFlash2Net, item: Round, walk: Walk, scores: Tensor) -> dict[str, Tensor]:
    """Candidates of every row, scored behind the path and behind each other."""
    logits, hidden = item.rows.logits[0], item.rows.draft_hidden[0]
    candidates = torch.stack([choices.token_ids for choices in walk.choices])
    count = candidates.shape[-1]
    best = logits.topk(min(count + 1, logits.shape[-1])).values
    anchors = torch.full_like(candidates[:1], item.anchor)
    predecessors = torch.cat((anchors, candidates[:-1]))
    pairs = net.choices(
        hidden.unsqueeze(1).expand(-1, count, -1),
        logits.unsqueeze(1).expand(-1, count, -1),
        predecessors,
    )
    return {
        "candidate_ids": candidates,
        "unary": best[:, :count],
        "topk_cut_gap": best[:, count - 1] - best[:, -1],
        "scores_row": scores,
        "choice_margin": _margin(scores),
        "pair_scores": pairs.logits,
    }


def _margin(scores: Tensor) -> Tensor:
    """[..., n] -> [...] best minus second best."""
    best = scores.topk(2).values
    return best[..., 0] - best[..., 1]
