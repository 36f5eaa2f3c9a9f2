"""`slipstream bench speculation` on a tiny random model: the numbers fit together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream.bench.engine_target import EngineTarget
from slipstream.bench.measure import measure
from slipstream.bench.plan import BenchPlan
from slipstream.bench.prompts import Prompt, read_prompts
from slipstream.bench.target import Job
from slipstream.cli.main import main
from slipstream.clock import SystemClock
from slipstream.engine.llm import LLM
from slipstream.sampling.params import SamplingParams
from tests.support.tiny import write_tiny_checkpoint

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SETTINGS = {"model.dtype": "float32", "memory.kv_bytes": "32MiB", "engine.num_threads": 1}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    return write_tiny_checkpoint(path, "llama", seed=1, dtype=torch.float32)


@pytest.fixture(scope="module")
def prompt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    contents = [["one two one two one two"], ["a b c a b c a b c"], ["say it", "say it again"]]
    entries: list[dict[str, Any]] = [
        {
            "id": f"{category}/{number}",
            "category": category,
            "messages": [{"role": "user", "content": f"{category} {text}"} for text in turns],
        }
        for category in ("copy", "chat")
        for number, turns in enumerate(contents)
    ]
    entries.append({"id": "long", "category": "chat", "prompt": "x" * 600})
    path.write_text("\n".join(json.dumps(entry) for entry in entries))
    return path


@pytest.fixture(scope="module")
def llm(model_path: Path) -> Iterator[LLM]:
    with LLM(str(model_path), settings=SETTINGS) as llm:
        yield llm


@dataclass
class Result:
    """What the command left behind."""

    document: Any  # Any: JSON values
    png: bytes
    output: str


@pytest.fixture(scope="module")
def result(model_path: Path, prompt_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("result")
    settings = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    options = ["--max-tokens", "24", "--control", "--prompts", str(prompt_file)]
    files = ["--json", str(folder / "bench.json"), "--plot", str(folder / "bench.png")]
    with pytest.MonkeyPatch.context() as patch, (folder / "output").open("w") as output:
        patch.setattr("sys.stdout", output)
        patch.setenv("COLUMNS", "80")
        command = ["bench", "speculation", "--model", str(model_path)]
        with pytest.raises(SystemExit) as end:
            main([*command, *settings, *options, *files])
    assert end.value.code == 0
    return Result(
        json.loads((folder / "bench.json").read_text()),
        (folder / "bench.png").read_bytes(),
        (folder / "output").read_text(),
    )


def turns_of(result: Result, mode: str) -> list[Any]:
    return [
        turn
        for run in result.document["runs"]
        for answer in run["modes"][mode]["answers"]
        for turn in answer
    ]


def test_every_prompt_ran_in_every_mode_under_every_sampling(result: Result) -> None:
    runs = result.document["runs"]
    assert len(runs) == 6 * 2
    assert {run["sampling"] for run in runs} == {"greedy", "seeded"}
    assert all(set(run["modes"]) == {"off", "on", "control"} for run in runs)
    assert len({tuple(run["order"]) for run in runs}) == 3
    assert len(turns_of(result, "on")) == (2 + 2 * 2) * 2 + 2 * 2
    assert result.document["is_complete"]


def test_a_prompt_that_does_not_fit_is_left_out_with_the_reason(result: Result) -> None:
    assert list(result.document["refused_prompts"]) == ["long"]
    assert "512" in result.document["refused_prompts"]["long"]


def test_counts_fit_together(result: Result) -> None:
    total = result.document["summary"]["total"]
    counts = total["drafts"]["counts"]
    turns = turns_of(result, "on")
    assert 0 < counts["num_drafts"] <= counts["num_draft_tokens"]
    assert counts["num_accepted_tokens"] <= counts["num_draft_tokens"]
    assert counts["num_draft_tokens"] == sum(turn["drafted"] for turn in turns)
    assert counts["num_accepted_tokens"] == sum(turn["accepted"] for turn in turns)
    assert counts["drafted_at"][0] == counts["num_drafts"]
    assert all(deeper <= depth for depth, deeper in pairwise(counts["drafted_at"]))
    assert sum(counts["accepted_at"]) == counts["num_accepted_tokens"]
    assert all(0 <= share <= 1 for share in total["drafts"]["acceptance_at"])
    assert 0 <= total["drafts"]["node_utilisation"] <= 1


def test_plain_runs_draft_nothing_and_take_one_step_a_token(result: Result) -> None:
    for mode in ("off", "control"):
        turns = turns_of(result, mode)
        assert all(turn["drafts"] == 0 for turn in turns)
        assert all(turn["steps"] == turn["tokens"] for turn in turns)
        assert result.document["summary"]["total"]["modes"][mode]["draft_share"] == 0


def test_outputs_are_equal_and_the_steps_saved_are_the_accepted_tokens(result: Result) -> None:
    assert result.document["outputs"]["divergences"] == []
    for off, on in zip(turns_of(result, "off"), turns_of(result, "on"), strict=True):
        assert off["tokens"] == on["tokens"]
        assert on["steps"] == on["tokens"] - on["accepted"]


def test_times_fit_together(result: Result) -> None:
    for name, mode in result.document["summary"]["total"]["modes"].items():
        turns = turns_of(result, name)
        assert all(0 < turn["ttft_s"] <= turn["e2e_s"] for turn in turns)
        assert mode["e2e_total_s"] == pytest.approx(sum(turn["e2e_s"] for turn in turns), abs=1e-4)
        assert mode["wall_s"] <= mode["e2e_total_s"] + 1e-4
        assert mode["tokens_per_s"] == pytest.approx(mode["num_tokens"] / mode["wall_s"], rel=1e-3)
        assert mode["draft_share"] + mode["verify_share"] == pytest.approx(1.0, abs=1e-4)
        assert 0 <= mode["outside_share"] < 1


def test_ratios_are_those_of_the_totals_and_have_intervals(result: Result) -> None:
    total = result.document["summary"]["total"]
    ratio = total["ratios"]["tokens_per_s"]
    off, on = total["modes"]["off"], total["modes"]["on"]
    assert ratio["value"] == pytest.approx(on["tokens_per_s"] / off["tokens_per_s"], rel=1e-3)
    assert ratio["low"] <= ratio["value"] <= ratio["high"]
    assert total["noise"]["tokens_per_s"] is not None
    assert (
        result.document["summary"]["by_category"]["copy"]["ratios"]["tokens_per_s"]["low"] is None
    )


def test_runs_meet_nothing_that_another_left_behind(result: Result) -> None:
    for mode in ("off", "on", "control"):
        for run in result.document["runs"]:
            (answer,) = run["modes"][mode]["answers"]
            assert answer[0]["cached_tokens"] == 0
            assert all(turn["cached_tokens"] > 0 for turn in answer[1:])


def test_the_verdict_and_the_tables_are_printed(result: Result) -> None:
    verdict = result.document["verdict"]
    assert "times the tokens per second" in verdict["text"]
    assert verdict["limit"] in result.output
    assert "acceptance by depth" in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_provenance_is_complete(result: Result) -> None:
    provenance = result.document["provenance"]
    assert provenance["prompt_files"].keys() == {"prompts.jsonl"}
    assert provenance["machine"]["num_cores"] >= 1
    assert {"slipstream", "python", "torch"} <= provenance["versions"].keys()
    assert result.document["target"]["fingerprint"].startswith("fp_")
    assert result.document["target"]["num_threads"] == 1
    assert result.document["target"]["config"]["speculation"]["drafters"][0]["kind"] == "suffix"


def test_the_plot_is_a_png(result: Result) -> None:
    assert result.png.startswith(b"\x89PNG\r\n")


def test_prompts_that_run_together_answer_as_if_alone(llm: LLM, prompt_file: Path) -> None:
    target = EngineTarget(llm, SystemClock())
    prompts = read_prompts([prompt_file])[:3]
    together = target.run([Job(p, GREEDY, f"t{p.prompt_id}") for p in prompts], is_drafting=True)
    alone = [target.run([Job(p, GREEDY, f"a{p.prompt_id}")], is_drafting=True) for p in prompts]
    assert [turn.token_ids for turn in together.turns] == [
        turn.token_ids for run in alone for turn in run.turns
    ]
    assert together.wall_s < sum(turn.e2e_s for turn in together.turns)
    llm.engine.check_integrity()


def test_shared_memory_lets_a_prompt_meet_the_one_before_it(llm: LLM) -> None:
    same = [Prompt(str(i), "c", text="the very same words, again and again") for i in range(2)]
    plan = BenchPlan(samplings=("greedy",), max_tokens=8, nonce="shared", is_memory_shared=True)
    measured = measure(EngineTarget(llm, SystemClock()), plan, same)
    cached = [
        [item.runs[mode].turns[0].num_cached_tokens for mode in plan.modes]
        for item in measured.measurements
    ]
    assert cached[0] == [0, 0]
    assert min(cached[1]) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "speculation.drafters=[]"], "nothing to measure"),
        (["--url", "http://127.0.0.1:9", "--model", "x"], "--url measures a running server"),
        (["--sampling", "warm"], '--sampling has no "warm"'),
        (["--json", "no/such/folder/x.json"], "cannot be written"),
        (["--prompts", "no-such-file.jsonl"], "cannot be read"),
    ],
)
def test_a_wrong_call_ends_before_anything_is_loaded(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "speculation", *arguments])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_a_server_that_is_not_there_is_an_error_with_a_hint(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "speculation", "--url", "http://127.0.0.1:9"])
    assert end.value.code == 1
    assert "slipstream serve" in capsys.readouterr().err
