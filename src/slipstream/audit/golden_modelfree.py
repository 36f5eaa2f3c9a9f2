"""Recorded proposals of model-free drafters against ours.

A file holds a list. Prompt lookup: records with `tokens` and, per rule, calls with the rule's
arguments and the `draft` it gave (`vllm`: longest match, earliest place; `hf`: leftmost match of
the longest length that has one). Suffix decoding: scenarios of operations on a cache, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.audit.fixture import Check, Fixture, FixtureError, guarded
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.state import SamplingState
from slipstream.speculation.drafter import DraftContext
from slipstream.speculation.drafters.ngram import NgramDrafter, NgramRules
from slipstream.speculation.drafters.suffix.automaton import IndexedSequence, SuffixAutomaton
from slipstream.speculation.drafters.suffix.memory import SharedMemory
from slipstream.speculation.drafters.suffix.predict import Continuation, Limits, Predictor

BOUND = 1e-6
_ANY_TOKEN = 2**31

Record = Mapping[str, Any]  # Any: a JSON object


def fixture_of(path: Path, records: Sequence[Any]) -> Fixture | None:  # Any: JSON values
    """The fixture that a file's records are; None where they are of another kind."""
    if all(isinstance(record, dict) for record in records):
        if all("tokens" in record and ("vllm" in record or "hf" in record) for record in records):
            return Fixture("ngram", path, guarded(lambda: ngram_checks(records)))
        if all("ops" in record and "max_tree_depth" in record for record in records):
            return Fixture("suffix", path, guarded(lambda: suffix_checks(records)))
    return None


def ngram_checks(records: Sequence[Record]) -> list[Check]:
    """Every recorded draft against the same match policy of ours."""
    longest = [
        _longest_earliest(record, call) for record in records for call in _of(record, "vllm")
    ]
    leftmost = [_first_leftmost(record, call) for record in records for call in _of(record, "hf")]
    checks = [
        _equal("longest match, earliest place", longest),
        _equal("first leftmost match", leftmost),
    ]
    return [check for check in checks if check.num_compared]


def suffix_checks(scenarios: Sequence[Record]) -> list[Check]:
    """Chains where no count ties, trees as sets of paths, and scores wherever they are definite."""
    chains: list[tuple[object, object]] = []
    trees: list[tuple[object, object]] = []
    errors: list[float] = []
    for call, ours in _speculations(scenarios):
        if call["args"]["use_tree_spec"]:
            recorded = _nodes(call["token_ids"], call["parents"], call["probs"])
            trees.append((_nodes(ours.tokens, ours.parents, ours.probs), recorded))
        elif not call.get("tie_on_path"):
            match_len = call["match_len"] if call["token_ids"] else ours.match_len
            chains.append(
                (
                    (ours.tokens, ours.parents, ours.match_len),
                    (call["token_ids"], call["parents"], match_len),
                )
            )
            errors += [abs(a - b) for a, b in zip(ours.probs, call["probs"], strict=False)]
        if call.get("recount_agrees") is not False:
            errors.append(abs(ours.score - call["score"]) / max(1.0, abs(call["score"])))
    error = max(errors, default=0.0)
    checks = [
        _equal("chains", chains),
        _equal("trees", trees),
        Check("probabilities, scores", error, BOUND, num_compared=len(errors)),
    ]
    return [check for check in checks if check.num_compared]


def _of(record: Record, rule: str) -> Sequence[Record]:
    calls: Sequence[Record] = record.get(rule, ())
    return calls


def _equal(name: str, pairs: Sequence[tuple[object, object]]) -> Check:
    """A check that each of our results equals the recorded one."""
    wrong = [(index, pair) for index, pair in enumerate(pairs) if pair[0] != pair[1]]
    note = f"call {wrong[0][0]}: {wrong[0][1][0]} instead of {wrong[0][1][1]}" if wrong else ""
    return Check(name, num_compared=len(pairs), num_wrong=len(wrong), note=note)


def _longest_earliest(record: Record, call: Record) -> tuple[list[int], list[int]]:
    rules = NgramRules(
        match="longest_earliest",
        min_n=call["min_n"],
        max_n=call["max_n"],
        max_draft_len=call["k"],
        vocab_size=_ANY_TOKEN,
        eos_token_ids=frozenset(),
        cut_at_eos=True,
    )
    room = call["max_model_len"] - len(record["tokens"])
    return _ngram_draft(record["tokens"], rules, min(call["k"], room)), call["draft"]


def _first_leftmost(record: Record, call: Record) -> tuple[list[int], list[int]]:
    num_tokens, eos = call["num_output_tokens"], call["eos_token_id"]
    rules = NgramRules(
        match="first_leftmost",
        min_n=1,
        max_n=call["max_matching_ngram_size"],
        max_draft_len=num_tokens,
        vocab_size=_ANY_TOKEN,
        eos_token_ids=frozenset() if eos is None else frozenset((eos,)),
        cut_at_eos=True,
    )
    is_full = call["max_length"] == len(record["tokens"]) + 1
    return _ngram_draft(record["tokens"], rules, 0 if is_full else num_tokens), call["draft"]


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


def _speculations(scenarios: Sequence[Record]) -> Iterator[tuple[Record, Continuation]]:
    """Every recorded speculation with ours at the same point of its scenario."""
    for scenario in scenarios:
        replay = _Replay(scenario)
        for op in scenario["ops"]:
            if op["op"] == "speculate":
                yield op, replay.speculate(op)
            else:
                replay.apply(op)


class _Replay:
    """The recorded cache's operations on the parts of our suffix drafter."""

    def __init__(self, scenario: Record) -> None:
        self._max_depth: int = scenario["max_tree_depth"]
        max_outputs: int = scenario["max_cached_requests"]
        self._shared = SharedMemory(self._max_depth, None if max_outputs < 0 else max_outputs)
        self._texts: dict[str, tuple[SuffixAutomaton, IndexedSequence]] = {}

    def apply(self, op: Record) -> None:
        """Any operation but a speculation.

        Raises:
            FixtureError: The operation is unknown, or our state is not the recorded one.
        """
        kind = op["op"]
        if kind == "start_request":
            automaton, sequence = SuffixAutomaton(self._max_depth), IndexedSequence()
            automaton.extend(sequence, op["prompt"])
            self._texts[op["req"]] = automaton, sequence
            self._shared.start(op["req"])
        elif kind == "add_active_response":
            automaton, sequence = self._texts[op["req"]]
            automaton.extend(sequence, op["tokens"])
            self._shared.extend(op["req"], op["tokens"])
        elif kind == "stop_request":
            del self._texts[op["req"]]
        elif kind == "state":
            ours = sorted(self._texts), sorted(map(str, self._shared.keys))
            if ours != (sorted(op["active"]), sorted(op["cached"])):
                raise FixtureError(f"active and cached requests are {ours} instead of {op}")
        else:
            raise FixtureError(f"the operation {kind!r} is not known")

    def speculate(self, op: Record) -> Continuation:
        """The better of the request's own continuation and the shared one; its own wins ties."""
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


def _nodes(
    tokens: Sequence[int], parents: Sequence[int], probs: Sequence[float]
) -> set[tuple[tuple[int, ...], float]]:
    """Each node as the tokens that lead to it and its probability."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return {(path, round(prob, 6)) for path, prob in zip(paths, probs, strict=True)}
