"""Replay recorded answers against the model-free drafters: how much would each save?

No model runs. An answer's own tokens play the target, so acceptance is exact for a target that
gives these answers. Answers come one after the other, so outputs of earlier ones can be drafted
from. Usage:

    python benchmarks/replay_drafters.py ANSWERS.jsonl.gz [--answers 1000] [--out FILE.json]

Each line of the file: `prompt_ids`, `response_ids`, `temperature`, `category`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypedDict

from slipstream.config.speculation import NgramConfig, SuffixConfig
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.state import SamplingState
from slipstream.speculation.build import DrafterResources, build_drafter
from slipstream.speculation.drafter import DraftContext, Drafter, Observation
from slipstream.speculation.merge import merge_trees
from slipstream.speculation.tree import ROOT, DraftTree

MAX_DRAFT_LEN = 8
MAX_DRAFT_NODES = 16
RESOURCES = DrafterResources(49152, frozenset({2}), draft_models={})
NUM_BINS = 5


class Answer(TypedDict):
    """One line of the file."""

    prompt_ids: list[int]
    response_ids: list[int]
    temperature: float
    category: str


@dataclass
class Tally:
    """What one drafter set achieved.

    Attributes:
        num_tokens, num_steps: Tokens emitted, and target passes that they took.
        num_nodes, num_accepted: Draft tokens verified and kept.
        draft_s: CPU seconds in `propose` and `observe`.
        bins: For nodes whose parent was accepted, by score: [nodes, sum of scores, accepted];
            scores here are relative to the parent's.
    """

    num_tokens: int = 0
    num_steps: int = 0
    num_nodes: int = 0
    num_accepted: int = 0
    draft_s: float = 0.0
    bins: list[list[float]] = field(default_factory=lambda: [[0.0] * 3 for _ in range(NUM_BINS)])

    def count(self, tree: DraftTree, accepted: Sequence[int]) -> None:
        """Count one step; `accepted` are the nodes on the kept path."""
        self.num_tokens += len(accepted) + 1
        self.num_steps += 1
        self.num_nodes += len(tree)
        self.num_accepted += len(accepted)
        for parent in (ROOT, *accepted):
            for node in tree.children(parent).values():
                score = tree.scores[node] / (tree.scores[parent] if parent != ROOT else 1.0)
                entry = self.bins[min(int(score * NUM_BINS), NUM_BINS - 1)]
                entry[0] += 1
                entry[1] += score
                entry[2] += node in accepted

    @property
    def mean_acceptance_length(self) -> float:
        return self.num_tokens / max(self.num_steps, 1)


def read_answers(path: Path, count: int) -> list[Answer]:
    """The first answers of a file, which may be compressed."""
    opening = gzip.open if path.suffix == ".gz" else open
    with opening(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, count)]


def replay(drafters: Sequence[Drafter], answers: Sequence[Answer]) -> dict[float, Tally]:
    """Tallies by temperature."""
    tallies: dict[float, Tally] = {}
    for number, answer in enumerate(answers):
        tally = tallies.setdefault(answer["temperature"], Tally())
        _replay_one(drafters, str(number), answer, tally)
    return tallies


def _replay_one(drafters: Sequence[Drafter], request_id: str, answer: Answer, tally: Tally) -> None:
    output = answer["response_ids"]
    prompt_len = len(answer["prompt_ids"])
    tokens = [*answer["prompt_ids"], output[0]]
    num_new = 1
    params, state = SamplingParams(), SamplingState()
    while True:
        done = len(tokens) - prompt_len
        is_finished = done == len(output)
        started_s = time.process_time()
        seen = Observation(request_id, "", tokens, num_new, prompt_len, is_finished)
        for drafter in drafters:
            drafter.observe([seen])
        if is_finished:
            for drafter in drafters:
                drafter.release([request_id])
            return
        context = DraftContext(
            request_id, tokens, prompt_len, params, state, 0, "", MAX_DRAFT_LEN, MAX_DRAFT_NODES
        )
        proposals = [drafter.propose([context])[0] for drafter in drafters]
        tree = merge_trees(proposals, MAX_DRAFT_NODES, MAX_DRAFT_LEN)
        tally.draft_s += time.process_time() - started_s
        accepted = accepted_nodes(tree, output[done:])
        tally.count(tree, accepted)
        new = output[done : done + len(accepted) + 1]
        tokens = [*tokens, *new]
        num_new = len(new)


def accepted_nodes(tree: DraftTree, truth: Sequence[int]) -> list[int]:
    """Nodes of the path that agrees with `truth`, from the root down."""
    nodes: list[int] = []
    for token in truth:
        node = tree.child(nodes[-1] if nodes else ROOT, token)
        if node is None:
            break
        nodes.append(node)
    return nodes


def _variants() -> dict[str, Callable[[], list[Drafter]]]:
    def ngram(**settings: object) -> Callable[[], list[Drafter]]:
        return lambda: [build_drafter(NgramConfig.model_validate(settings), RESOURCES)]

    def suffix(**settings: object) -> Callable[[], list[Drafter]]:
        return lambda: [build_drafter(SuffixConfig.model_validate(settings), RESOURCES)]

    return {
        "ngram longest_earliest": ngram(match="longest_earliest"),
        "ngram first_leftmost, n 1-2": ngram(match="first_leftmost", min_n=1, max_n=2),
        "ngram longest_latest": ngram(match="longest_latest"),
        "ngram longest_latest, n 1-5": ngram(match="longest_latest", min_n=1),
        "ngram longest_latest, eos kept": ngram(match="longest_latest", cut_at_eos=False),
        "suffix, own text only": suffix(max_cached_requests=0),
        "suffix": suffix(),
        "suffix, factor 1": suffix(max_spec_factor=1.0),
        "suffix, factor 4": suffix(max_spec_factor=4.0),
        "suffix, tree": suffix(tree=True),
        "suffix + ngram": lambda: [*suffix()(), *ngram()()],
    }


def _row(name: str, tallies: dict[float, Tally]) -> dict[str, object]:
    total = Tally()
    for tally in tallies.values():
        total.num_tokens += tally.num_tokens
        total.num_steps += tally.num_steps
        total.num_nodes += tally.num_nodes
        total.num_accepted += tally.num_accepted
        total.draft_s += tally.draft_s
        for ours, theirs in zip(total.bins, tally.bins, strict=True):
            ours[:] = [a + b for a, b in zip(ours, theirs, strict=True)]
    return {
        "drafters": name,
        "mean_acceptance_length": round(total.mean_acceptance_length, 3),
        "by_temperature": {
            str(temperature): round(tally.mean_acceptance_length, 3)
            for temperature, tally in sorted(tallies.items())
        },
        "nodes_per_step": round(total.num_nodes / total.num_steps, 2),
        "node_utilisation": round(total.num_accepted / max(total.num_nodes, 1), 3),
        "cpu_us_per_step": round(total.draft_s / total.num_steps * 1e6, 1),
        "calibration": [
            {
                "nodes": int(nodes),
                "mean_score": round(scores / nodes, 3),
                "accepted": round(accepted / nodes, 3),
            }
            for nodes, scores, accepted in total.bins
            if nodes
        ],
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    """Replay every variant, print a table, write the file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("answers_file", type=Path)
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--only", default="", help="Only variants whose name contains this.")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    answers = read_answers(args.answers_file, args.answers)
    rows = []
    for name, build in _variants().items():
        if args.only not in name:
            continue
        row = _row(name, replay(build(), answers))
        rows.append(row)
        sys.stdout.write(
            f"{name:32} {row['mean_acceptance_length']:6} tokens a step, "
            f"{row['nodes_per_step']:5} nodes a step, {row['node_utilisation']:6} of them kept, "
            f"{row['cpu_us_per_step']:6} us a step  {row['by_temperature']}\n"
        )
        sys.stdout.flush()
    if args.out is not None:
        document = {
            "command": f"python benchmarks/replay_drafters.py {args.answers_file.name} "
            f"--answers {args.answers}",
            "machine": f"{_cpu_name()}, {platform.python_implementation()} "
            f"{platform.python_version()}",
            "date": time.strftime("%Y-%m-%d"),
            "max_draft_len": MAX_DRAFT_LEN,
            "max_draft_nodes": MAX_DRAFT_NODES,
            "num_answers": len(answers),
            "num_tokens": sum(len(answer["response_ids"]) for answer in answers),
            "rows": rows,
        }
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
