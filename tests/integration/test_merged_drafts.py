"""Copied and learned drafts in one tree, under one node budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.engine.llm import LLM
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.tree import DraftTree
from tests.integration.test_draft_nets import GREEDY, SAMPLED, load, token_ids, write_pair

LOOP = [10, 46, 91, 7, 34]  # a reduced draft vocabulary has them too
PROMPT = LOOP * 5 + LOOP[:2]
MAX_NODES = 7
CLOSED = [replace(params, allowed_token_ids=tuple(LOOP)) for params in (GREEDY, SAMPLED)]


def trees_of(llm: LLM, prompt: Sequence[int], params: SamplingParams) -> list[DraftTree]:
    """Every draft that was verified."""
    trees: list[DraftTree] = []
    for _ in llm.stream(list(prompt), params):
        report = llm.engine.last_report
        assert report is not None
        trees += [commit.tree for commit in report.commits if commit.tree]
    return trees


@pytest.mark.parametrize("copier", ["suffix", {"kind": "ngram", "min_n": 1}])
@pytest.mark.parametrize("family", ["eagle3", "dspark"])
@pytest.mark.parametrize("num_children", [1, 3], ids=["chain", "tree"])
def test_both_drafts_share_the_tree_and_change_no_token(
    tmp_path: Path, family: str, num_children: int, copier: object
) -> None:
    target, net = write_pair(tmp_path, family)
    net |= {"num_children": num_children, "max_draft_len": 2, "name": "net"}
    named = {"kind": copier, "name": "copier"} if isinstance(copier, str) else None
    drafters = [named or {**copier, "name": "copier"}, net]  # type: ignore[dict-item]  # a table
    settings = {"speculation.max_draft_nodes": MAX_NODES, "scheduler.max_step_tokens": 64}
    plain, merging = load(target, []), load(target, drafters, **settings)
    for params in CLOSED:
        trees = trees_of(merging, PROMPT, params)
        assert max(len(tree) for tree in trees) <= MAX_NODES
        sources = [set().union(*tree.sources) for tree in trees]
        assert {"copier", "net"} in sources
        answers = [token_ids(llm.generate([PROMPT], params)) for llm in (plain, merging)]
        assert answers[0] == answers[1]
    merging.engine.check_integrity()
    assert "slipstream_drafter_faults_total{" not in str(merging.engine.call("metrics"))
