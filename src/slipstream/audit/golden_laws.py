"""Exact laws of the acceptance rules against ours, by enumeration of toy vocabularies.

A case is a prefix of names. Chains: distributions `p0`, `p1`, ... of the target and `q0`, ... of
the draft depend on all tokens before, so array i has i + 1 axes. Trees: `tokens`, `parents` and
`p` [nodes, vocab], entry 0 being the root.

Laws are held to `BOUND`, shares of trees that are verified with many seeds to `DRAWN_BOUND`;
docs/guides/proving.md states both.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from slipstream.audit.fixture import Check
from slipstream.audit.recorded import Recorded, close, compare, equal
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import Sampler
from slipstream.sampling.state import SamplingState
from slipstream.speculation.rejection import (
    ChainLaw,
    acceptance_probs,
    block_accepted_len,
    block_law,
    block_ratios,
    chain_accepted_len,
    chain_law,
)
from slipstream.speculation.tree import DraftTree
from slipstream.speculation.verify import Candidate, verify

BOUND = 1e-12
NUM_DRAWS = 400
DRAWN_BOUND = 5.0 * 0.5 / NUM_DRAWS**0.5  # five standard errors of the likeliest event's share


class _Law:
    """A `ChainLaw` as tensors."""

    def __init__(self, law: ChainLaw) -> None:
        self.thresholds = torch.from_numpy(law.thresholds)
        self.residuals = torch.from_numpy(law.residuals)


def is_law(names: Mapping[str, object] | frozenset[str]) -> bool:
    """Whether arrays of these names are such a file."""
    return any(".chain.joint" in name or name.endswith(".end_prob") for name in names)


def law_checks(path: Path) -> list[Check]:
    """Every case of a file.

    Raises:
        FixtureError: Arrays are missing.
    """
    recorded = Recorded.read(path)
    checks: list[Check] = []
    for prefix in recorded.prefixes("q0"):
        checks += _chain_checks(recorded.below(prefix))
    for prefix in recorded.prefixes("end_prob"):
        checks += _tree_checks(recorded.below(prefix))
    return checks


def _chain_checks(case: Recorded) -> list[Check]:
    num_drafts = sum(name[0] == "q" and name[1:].isdigit() for name in case.arrays)
    vocab = case["q0"].shape[-1]
    chains = torch.tensor(list(itertools.product(range(vocab), repeat=num_drafts)))
    target = _along(case, "p", chains, num_drafts + 1)
    draft = _along(case, "q", chains, num_drafts)
    given = target.numpy(), draft.numpy(), chains.numpy()
    laws = {"chain": _Law(chain_law(*given)), "block": _Law(block_law(*given))}
    drawn = draft.gather(-1, chains.unsqueeze(-1)).squeeze(-1).prod(-1)
    stops = {
        "chain": _stop_probs_of_chain(laws["chain"].thresholds),
        "block": _stop_probs_of_block(laws["block"].thresholds),
    }
    ours: dict[str, Tensor] = {}
    ratios = torch.from_numpy(block_ratios(*given))
    for rule, law in laws.items():
        lens = []
        for accepted_len in range(num_drafts + 1):
            joint = _joint(chains, drawn * stops[rule][:, accepted_len], law, accepted_len, vocab)
            ours[f"{rule}.joint{accepted_len}"] = joint
            lens.append(joint.sum())
            if accepted_len < num_drafts:
                residual = law.residuals[:, accepted_len]
                ours[f"{rule}.residual{accepted_len}"] = _table(residual, vocab, accepted_len)
        ours[f"{rule}.accept_len"] = torch.stack(lens)
    for index in range(num_drafts):
        accepted = acceptance_probs(case[f"p{index}"].numpy(), case[f"q{index}"].numpy())
        ours[f"chain.accept_prob{index}"] = torch.from_numpy(accepted)
        depth = index + 1
        ours[f"block.ratio{depth}"] = _table(ratios[:, index], vocab, depth)
        ours[f"block.h{depth}"] = _table(laws["block"].thresholds[:, index], vocab, depth)
    return [*compare(ours, case, {"": BOUND}), *_decision_checks(case, chains, laws)]


def _decision_checks(case: Recorded, chains: Tensor, laws: Mapping[str, _Law]) -> list[Check]:
    """Accepted lengths of given drafts and uniforms."""
    if "dec.x" not in case:
        return []
    given = case["dec.x"].long()
    rows = (chains == given.unsqueeze(1)).all(-1).long().argmax(-1)
    uniforms = case["dec.u"].numpy()
    thresholds = {rule: law.thresholds[rows].numpy() for rule, law in laws.items()}
    lens = {
        "chain": chain_accepted_len(thresholds["chain"], uniforms),
        "block": block_accepted_len(thresholds["block"], uniforms),
    }
    return [
        equal(f"{case.place}dec.{rule}_len", torch.from_numpy(found), case[f"dec.{rule}_len"])
        for rule, found in lens.items()
    ]


def _along(case: Recorded, name: str, chains: Tensor, count: int) -> Tensor:
    """[chains, count, vocab] distributions in front of each token of every chain."""
    rows: list[Tensor] = []
    for index in range(count):
        table = case[f"{name}{index}"].double()
        rows.append(table[tuple(chains[:, :index].T)] if index else table.expand(len(chains), -1))
    return torch.stack(rows, 1)


def _stop_probs_of_chain(thresholds: Tensor) -> Tensor:
    """[chains, drafts + 1] probability that exactly so many drafts are accepted."""
    passes = torch.nan_to_num(thresholds, 0.0)
    before = torch.cat((torch.ones_like(passes[:, :1]), passes.cumprod(-1)), -1)
    fails = torch.cat((1.0 - passes, torch.ones_like(passes[:, :1])), -1)
    return before * fails


def _stop_probs_of_block(thresholds: Tensor) -> Tensor:
    """The same where the longest passing prefix is taken."""
    passes = torch.nan_to_num(thresholds, 0.0)
    none_behind = (1.0 - passes).flip(-1).cumprod(-1).flip(-1)
    none_behind = torch.cat((none_behind, torch.ones_like(passes[:, :1])), -1)
    return none_behind * torch.cat((torch.ones_like(passes[:, :1]), passes), -1)


def _joint(chains: Tensor, probs: Tensor, law: _Law, accepted_len: int, vocab: int) -> Tensor:
    """[vocab] * (accepted_len + 1): exactly so many are accepted and these tokens come out."""
    rows = probs.unsqueeze(-1) * torch.nan_to_num(law.residuals[:, accepted_len], 0.0)
    return rows.view(*[vocab] * accepted_len, -1, vocab).sum(-2)


def _table(of_chains: Tensor, vocab: int, depth: int) -> Tensor:
    """What depends on the first `depth` tokens of each chain, by these tokens."""
    num_chains = len(of_chains)
    step = num_chains // vocab**depth
    return of_chains[::step].view(*[vocab] * depth, *of_chains.shape[1:])


def _tree_checks(case: Recorded) -> list[Check]:
    tokens, parents = case.ints("tokens"), case.ints("parents")
    probs = case["p"].double()
    tree = DraftTree(
        tokens=tuple(tokens[1:]),
        parents=tuple(parent - 1 for parent in parents[1:]),
        scores=(1.0,) * (len(tokens) - 1),
        sources=(frozenset(),) * (len(tokens) - 1),
    )
    reach = torch.zeros(len(tokens), dtype=torch.float64)
    reach[0] = 1.0
    end_probs = torch.zeros_like(probs)
    for node in range(len(tokens)):
        end_probs[node] = reach[node] * probs[node]
        for token, child in tree.children(node - 1).items():
            reach[child + 1] = end_probs[node, token]
            end_probs[node, token] = 0.0
    depth = torch.tensor([0, *tree.depths])
    lens = torch.stack([end_probs[depth == level].sum() for level in range(tree.depth + 1)])
    ours = {"reach": reach, "end_prob": end_probs, "accept_len": lens, "depth": depth}
    drawn = close(
        f"{case.place}end_prob as drawn", _drawn(tree, probs), case["end_prob"], DRAWN_BOUND
    )
    return [*compare(ours, case, {"": BOUND}), drawn]


def _drawn(tree: DraftTree, probs: Tensor) -> Tensor:
    """Shares of (last node, last token) over many verifications with different seeds."""
    vocab = probs.shape[-1]
    params, state = SamplingParams(temperature=1.0), SamplingState()
    candidates = [Candidate(tree, 0, 1, params, state, seed) for seed in range(1, NUM_DRAWS + 1)]
    counts = torch.zeros_like(probs)
    for verdict in verify(Sampler(vocab, ()), probs.log().float(), candidates):
        counts[verdict.rows[-1], verdict.tokens[-1]] += 1.0
    return counts / NUM_DRAWS
