"""Replay recorded answers against the length controller: what would its rules gain?

No model runs, and no clock: an answer's own tokens play the target, and a table says what a pass
costs by its rows. So settings of the controller are compared in seconds and without noise. Usage:

    python -m benchmarks.replay_control ANSWERS.jsonl[.gz] [--costs 1:1,2:1.16,4:1.38,8:1.68,16:2.3]
        [--ask 0.03] [--decay 0.9,0.95] [--min-gain 1.05] [--shared]

Each line of the file: `prompt_ids`, `response_ids`, `temperature`, `category` (as `slipstream train
data` writes them). Costs and `--ask`, the cost of asking the drafter, are in passes of one row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from benchmarks.replay_drafters import (
    MAX_DRAFT_LEN,
    MAX_DRAFT_NODES,
    RESOURCES,
    Answer,
    accepted_nodes,
    read_answers,
)

from slipstream.config.control import CostControl
from slipstream.config.speculation import SuffixConfig
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.state import SamplingState
from slipstream.speculation.build import build_drafter
from slipstream.speculation.control import DraftLimit, StepFeedback
from slipstream.speculation.cost import StepCost
from slipstream.speculation.cost_control import CostController
from slipstream.speculation.drafter import DraftContext, Drafter, Observation
from slipstream.speculation.tree import EMPTY_TREE

BOUNDS = DraftLimit(MAX_DRAFT_LEN, MAX_DRAFT_NODES)


@dataclass(slots=True)
class Tally:
    """Tokens, and the time they took in passes of one row."""

    num_tokens: int = 0
    time: float = 0.0

    @property
    def gain(self) -> float:
        """Over plain decoding, after the first token."""
        return self.num_tokens / max(self.time, 1e-9)


class Replay:
    """One drafter and one controller over many answers.

    Args:
        costs: Rows -> cost of a pass.
        ask: Cost of asking the drafter.
        is_shared: Earlier answers can be drafted from.
    """

    def __init__(
        self, control: CostControl, costs: Mapping[int, float], ask: float, *, is_shared: bool
    ) -> None:
        self._true_cost = StepCost(costs)
        self._ask = ask
        self._is_shared = is_shared
        self._drafter: Drafter = build_drafter(SuffixConfig(), RESOURCES)
        self._controller = CostController(
            StepCost(costs),
            decay=control.decay,
            probe_interval=control.probe_interval,
            min_gain=control.min_gain,
        )

    def answer(self, request_id: str, answer: Answer, tally: Tally) -> None:
        """Give an answer's tokens as the target would, step by step."""
        output, prompt_len = answer["response_ids"], len(answer["prompt_ids"])
        tokens, num_new = [*answer["prompt_ids"], output[0]], 1
        salt = "" if self._is_shared else request_id
        while True:
            done = len(tokens) - prompt_len
            is_finished = done == len(output)
            seen = Observation(request_id, salt, tokens, num_new, prompt_len, is_finished)
            self._drafter.observe([seen])
            if is_finished:
                break
            new = self._step(request_id, salt, tokens, prompt_len, output[done:], tally)
            tokens, num_new = [*tokens, *new], len(new)
        self._drafter.release([request_id])
        self._controller.release(request_id)

    def _step(
        self,
        request_id: str,
        salt: str,
        tokens: Sequence[int],
        prompt_len: int,
        truth: Sequence[int],
        tally: Tally,
    ) -> Sequence[int]:
        limit = self._controller.limit(request_id, BOUNDS)
        tree, proposed, ask = EMPTY_TREE, {}, 0.0
        name = self._drafter.name
        if limit.max_draft_len and self._controller.asks(request_id, name):
            sizes = (limit.max_draft_len, limit.max_draft_nodes)
            context = DraftContext(
                request_id, tokens, prompt_len, SamplingParams(), SamplingState(), 0, salt, *sizes
            )
            tree = self._drafter.propose([context])[0]
            proposed, ask = {name: len(tree)}, self._ask
        tree = self._controller.prune({request_id: tree}, 1, 1)[request_id]
        path = accepted_nodes(tree, truth)
        rows = 1 + len(tree)
        cost = self._true_cost.seconds(rows)
        feedback = StepFeedback(request_id, proposed, tree, tuple(path))
        self._controller.observe([feedback], rows, cost, {name: ask} if proposed else {})
        new = truth[: len(path) + 1]
        tally.num_tokens += len(new)
        tally.time += cost + ask
        return new


def _floats(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _costs(text: str) -> dict[int, float]:
    pairs = (part.split(":") for part in text.split(","))
    return {int(rows): float(cost) for rows, cost in pairs}


def main() -> None:
    """Replay every combination of settings and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("answers_file", type=Path)
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--costs", type=_costs, default="1:1,2:1.16,4:1.38,8:1.68,16:2.3")
    parser.add_argument("--ask", type=float, default=0.03)
    parser.add_argument("--decay", type=_floats, default=[CostControl().decay])
    parser.add_argument("--min-gain", type=_floats, default=[CostControl().min_gain])
    parser.add_argument("--shared", action="store_true", help="Draft from earlier answers too.")
    args = parser.parse_args()
    read = read_answers(args.answers_file, args.answers)
    answers = [answer for answer in read if len(answer["response_ids"]) > 1]
    for decay, min_gain in product(args.decay, args.min_gain):
        control = CostControl(decay=decay, min_gain=min_gain)
        replay = Replay(control, args.costs, args.ask, is_shared=args.shared)
        tallies: dict[str, Tally] = {}
        for number, answer in enumerate(answers):
            replay.answer(str(number), answer, tallies.setdefault(answer["category"], Tally()))
        total = Tally(
            sum(tally.num_tokens for tally in tallies.values()),
            sum(tally.time for tally in tallies.values()),
        )
        worst = sorted(tallies, key=lambda category: tallies[category].gain)[:3]
        named = ", ".join(f"{category} {tallies[category].gain:.3f}" for category in worst)
        sys.stdout.write(
            f"decay {decay}, min_gain {min_gain}: gain {total.gain:.4f}; least: {named}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
