"""Our model-free drafters propose what the published ones do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from slipstream.sampling.params import SamplingParams
from slipstream.sampling.state import SamplingState
from slipstream.speculation.drafter import DraftContext
from slipstream.speculation.drafters.ngram import Match, NgramDrafter, NgramRules
from slipstream.speculation.drafters.suffix.automaton import IndexedSequence, SuffixAutomaton
from slipstream.speculation.drafters.suffix.memory import SharedMemory
from slipstream.speculation.drafters.suffix.predict import Continuation, Limits, Predictor
from tests.support.paths import shared_dir

# Any: the fixtures are JSON documents, described in the folder's README.
Record = Mapping[str, Any]


def _load(name: str) -> list[Record]:
    path = shared_dir("golden", "open", "modelfree", name)
    records: list[Record] = json.loads(path.read_text(encoding="utf-8"))
    return records


def _ngram_draft(tokens: Sequence[int], rules: NgramRules, max_draft_len: int) -> list[int]:
    if max_draft_len < 1:
        return []
    context = DraftContext(
        request_id="request",
        tokens=tokens,
        prompt_len=len(tokens),
        params=SamplingParams(),
        state=SamplingState(),
        seed=0,
        salt="",
        max_draft_len=max_draft_len,
        max_draft_nodes=max_draft_len,
    )
    return list(NgramDrafter("ngram", rules).propose([context])[0].tokens)


def test_longest_earliest_match_proposes_what_vllm_proposes() -> None:
    num_compared = 0
    for record in _load("ngram.json"):
        for call in record["vllm"]:
            rules = _ngram_rules("longest_earliest", call["min_n"], call["max_n"], call["k"])
            room = call["max_model_len"] - len(record["tokens"])
            draft = _ngram_draft(record["tokens"], rules, min(call["k"], room))
            assert draft == call["draft"], call
            num_compared += 1
    assert num_compared > 100


def test_first_leftmost_match_proposes_what_transformers_proposes() -> None:
    num_compared = 0
    for record in _load("ngram.json"):
        for call in record["hf"]:
            num_tokens = call["num_output_tokens"]
            eos = call["eos_token_id"]
            rules = _ngram_rules(
                "first_leftmost",
                1,
                call["max_matching_ngram_size"],
                num_tokens,
                () if eos is None else (eos,),
            )
            is_full = call["max_length"] == len(record["tokens"]) + 1
            draft = _ngram_draft(record["tokens"], rules, 0 if is_full else num_tokens)
            assert draft == call["draft"], call
            num_compared += 1
    assert num_compared > 80


def _ngram_rules(
    match: Match, min_n: int, max_n: int, max_draft_len: int, eos: Sequence[int] = ()
) -> NgramRules:
    return NgramRules(
        match=match,
        min_n=min_n,
        max_n=max_n,
        max_draft_len=max_draft_len,
        vocab_size=2**31,
        eos_token_ids=frozenset(eos),
        cut_at_eos=True,
    )


class _Replay:
    """The reference's request interface on our parts."""

    def __init__(self, scenario: Record) -> None:
        self._max_depth: int = scenario["max_tree_depth"]
        max_outputs: int = scenario["max_cached_requests"]
        self._shared = SharedMemory(self._max_depth, None if max_outputs < 0 else max_outputs)
        self._texts: dict[str, tuple[SuffixAutomaton, IndexedSequence]] = {}

    def start_request(self, op: Record) -> None:
        automaton, sequence = SuffixAutomaton(self._max_depth), IndexedSequence()
        automaton.extend(sequence, op["prompt"])
        self._texts[op["req"]] = automaton, sequence
        self._shared.start(op["req"])

    def add_active_response(self, op: Record) -> None:
        automaton, sequence = self._texts[op["req"]]
        automaton.extend(sequence, op["tokens"])
        self._shared.extend(op["req"], op["tokens"])

    def stop_request(self, op: Record) -> None:
        del self._texts[op["req"]]

    def state(self, op: Record) -> None:
        assert sorted(self._texts) == sorted(op["active"])
        assert sorted(map(str, self._shared.keys)) == sorted(op["cached"])

    def speculate(self, op: Record) -> Continuation:
        args = op["args"]
        predictor = Predictor(
            self._max_depth,
            args["max_spec_factor"],
            args["max_spec_offset"],
            is_tree=args["use_tree_spec"],
        )
        max_tokens = args["max_spec_tokens"]
        limits = Limits(max_tokens, max_tokens, args["min_token_prob"])
        drafts = [
            predictor.predict(automaton, automaton.match(op["context"]), limits)
            for automaton in (self._texts[op["req"]][0], self._shared.automaton)
        ]
        return max(drafts, key=lambda draft: draft.score)


def _suffix_calls() -> Iterator[tuple[Record, Continuation]]:
    for scenario in _load("suffix.json"):
        replay = _Replay(scenario)
        for op in scenario["ops"]:
            if op["op"] == "speculate":
                yield op, replay.speculate(op)
            else:
                getattr(replay, op["op"])(op)


def test_suffix_chains_equal_the_reference_where_no_count_ties() -> None:
    num_compared = 0
    for op, draft in _suffix_calls():
        if op["args"]["use_tree_spec"] or op.get("tie_on_path"):
            continue
        assert draft.tokens == op["token_ids"]
        assert draft.parents == op["parents"]
        assert draft.probs == pytest.approx(op["probs"], rel=1e-6)
        assert draft.score == pytest.approx(op["score"], rel=1e-6)
        if op["token_ids"]:
            assert draft.match_len == op["match_len"]
        num_compared += 1
    assert num_compared > 30


def test_suffix_trees_equal_the_reference_as_sets() -> None:
    num_compared = 0
    for op, draft in _suffix_calls():
        if op["args"]["use_tree_spec"]:
            ours = _nodes(draft.tokens, draft.parents, draft.probs)
            assert ours == _nodes(op["token_ids"], op["parents"], op["probs"])
            num_compared += 1
    assert num_compared > 10


def test_suffix_scores_equal_the_reference_even_where_counts_tie() -> None:
    for op, draft in _suffix_calls():
        if op.get("recount_agrees") is not False:
            assert draft.score == pytest.approx(op["score"], rel=1e-6), op


def _nodes(
    tokens: Sequence[int], parents: Sequence[int], probs: Sequence[float]
) -> set[tuple[tuple[int, ...], float]]:
    """Each node as the tokens that lead to it and its probability."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return {(path, round(prob, 6)) for path, prob in zip(paths, probs, strict=True)}
