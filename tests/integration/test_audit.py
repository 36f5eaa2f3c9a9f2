"""Whole audits: of every family, of the default model, of a live server, and of broken engines."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch import Tensor

from slipstream.audit.engine_target import EngineTarget
from slipstream.audit.findings import Report, Row
from slipstream.audit.lossless import LosslessAudit
from slipstream.audit.plan import (
    AuditPlan,
    parse_conditions,
    parse_drafter_sets,
    parse_samplings,
)
from slipstream.bench.prompts import Prompt
from slipstream.cli.main import main
from slipstream.config.load import load_config
from slipstream.config.speculation import (
    DrafterConfig,
    DraftModelConfig,
    NgramConfig,
    SuffixConfig,
)
from slipstream.engine.llm import LLM
from slipstream.execution.batch import ForwardBatch, ForwardOutput
from slipstream.execution.runner import Runner
from slipstream.kv.storage import KvStorage
from slipstream.sampling.sampler import Sampler
from slipstream.speculation.verify import Candidate, Verdict, verify
from tests.support.golden_files import write_json, write_target_fixture
from tests.support.models import default_model_path
from tests.support.tiny import FAMILIES
from tests.support.tiny_llm import write_tiny_model
from tests.unit.audit.fake_target import NoProgress

SETTINGS = {"memory.kv_bytes": "4MiB", "memory.page_size": 4, "engine.num_threads": 1}
PROMPTS = (
    Prompt("repeating", "text", text="the cat and the hat and the cat and the"),
    Prompt("short", "text", text="one"),
    Prompt("plain", "text", text="It was a bright cold day in April"),
    Prompt(
        "turns",
        "chat",
        messages=(
            {"role": "user", "content": "tell me"},
            {"role": "user", "content": "tell me more"},
        ),
    ),
)
SETS = "ngram,suffix,draft_model,draft_target,merge"
CONDITIONS = "cold,warm+chunked+preempted"


def drafters(other: Path) -> tuple[DrafterConfig, ...]:
    """All kinds; the draft models are another tiny model and the target itself in bfloat16.

    The latter proposes two children, because the first is always right if the target is bfloat16.
    """
    return (
        NgramConfig(min_n=1),
        SuffixConfig(tree=True),
        DraftModelConfig(source=str(other), num_children=3, max_draft_len=2),
        DraftModelConfig(name="draft_target", source="target", num_children=2),
    )


def audit(
    path: Path,
    dtype: str,
    configs: Sequence[DrafterConfig],
    *,
    sampling: str = "greedy,seeded,biased",
    sets: str = SETS,
    conditions: str = CONDITIONS,
    max_tokens: int = 12,
    **settings: Any,
) -> Report:
    config = load_config(
        overrides={**SETTINGS, "model.source": str(path), "model.dtype": dtype, **settings}
    )
    plan = AuditPlan(
        samplings=parse_samplings(sampling),
        concurrencies=(1, 8),
        drafter_sets=parse_drafter_sets(sets, [item.name for item in configs]),
        conditions=parse_conditions(conditions),
        max_tokens=max_tokens,
    )
    target = EngineTarget(
        config, configs, load=lambda config: LLM(config=config), chunked_step_tokens=16
    )
    return LosslessAudit(target, plan, PROMPTS, nonce="test", progress=NoProgress()).run()


def diverging(report: Report) -> list[Row]:
    return [row for row in report.rows if row.divergences]


@pytest.mark.parametrize(
    ("dtype", "sampling"), [("float32", "greedy,seeded"), ("bfloat16", "greedy,t1.0")]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_drafter_no_load_and_no_memory_pressure_changes_a_token(
    tmp_path: Path, family: str, dtype: str, sampling: str
) -> None:
    target = write_tiny_model(tmp_path / "target", family, seed=1)
    other = write_tiny_model(tmp_path / "other", family, seed=2)

    report = audit(target, dtype, drafters(other), sampling=sampling)

    assert diverging(report) == []
    assert report.vacuous == ()
    assert len(report.fingerprints) == 1
    assert report.num_drafter_faults == 0


def keep_every_draft(
    sampler: Sampler, logits: Tensor, candidates: Sequence[Candidate]
) -> list[Verdict]:
    """A verification that believes the draft's first branch."""
    verdicts = verify(sampler, logits, candidates)
    for place, (candidate, verdict) in enumerate(zip(candidates, verdicts, strict=True)):
        tree = candidate.tree
        if tree:
            path = (0,)
            rows = (candidate.row(-1), candidate.row(0))
            verdicts[place] = replace(
                verdict, tokens=(tree.tokens[0], verdict.tokens[-1]), path=path, rows=rows
            )
    return verdicts


def draw_with_the_anchors_noise(
    sampler: Sampler, logits: Tensor, candidates: Sequence[Candidate]
) -> list[Verdict]:
    """A verification that forgets how deep a node is, and so which noise is its own."""
    return verify(sampler, logits, [replace(item, position=7) for item in candidates])


def copy_nothing(self: KvStorage, sources: object, targets: object) -> None:
    """A commit that leaves the kept rows of a tree where they are."""


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return (
        write_tiny_model(tmp_path / "target", "llama", seed=1),
        write_tiny_model(tmp_path / "other", "llama", seed=2),
    )


def test_an_engine_that_believes_its_drafts_is_found_out(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.speculation.verification.verify", keep_every_draft)
    report = audit(pair[0], "float32", drafters(pair[1]), sets="off,ngram", conditions="cold")
    caught = {row.setting.drafters.label for row in diverging(report)}
    assert caught == {"ngram"}


def test_noise_that_does_not_belong_to_its_token_is_found_out(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mixed(sampler: Sampler, logits: Tensor, candidates: Sequence[Candidate]) -> list[Verdict]:
        is_drafted = any(item.tree for item in candidates)
        check = draw_with_the_anchors_noise if is_drafted else verify
        return check(sampler, logits, candidates)

    monkeypatch.setattr("slipstream.speculation.verification.verify", mixed)
    report = audit(pair[0], "float32", drafters(pair[1]), sets="suffix", conditions="cold")
    assert {row.setting.sampling for row in diverging(report)} <= {"t0.7", "t1.0", "biased"}
    assert diverging(report)


def audit_rejection(pair: tuple[Path, Path]) -> Report:
    """Greedy answers by token, sampled ones by their law; one model drafts for another."""
    configs = (DraftModelConfig(source=str(pair[1])),)
    return audit(
        pair[0],
        "float32",
        configs,
        sampling="greedy,t1.0",
        sets="off,draft_model",
        conditions="cold",
        max_tokens=60,
        **{"speculation.verification": "rejection"},
    )


def test_verification_by_rejection_keeps_greedy_tokens_and_the_law_of_others(
    pair: tuple[Path, Path],
) -> None:
    report = audit_rejection(pair)
    assert diverging(report) == []
    for row in report.rows:
        is_counted = row.setting.sampling == "t1.0" and not row.setting.drafters.is_off
        assert (row.law_distance is not None) == is_counted


def test_a_law_that_is_not_the_targets_is_found_out(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "slipstream.speculation.verification.block_accepted_len",
        lambda thresholds, uniforms: np.array(len(thresholds)),
    )
    caught = diverging(audit_rejection(pair))
    assert [item.what for row in caught for item in row.divergences] == ["law", "law"]
    assert {row.setting.sampling for row in caught} == {"t1.0"}


def test_rows_of_a_tree_that_are_not_moved_into_place_are_found_out(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KvStorage, "copy", copy_nothing)
    report = audit(pair[0], "float32", drafters(pair[1]), sets="off,merge", conditions="cold")
    assert {row.setting.drafters.is_off for row in diverging(report)} == {False}


def test_logits_that_depend_on_the_batch_are_found_out_with_the_gap_that_they_crossed(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Runner.forward

    def disturbed(self: Runner, batch: ForwardBatch) -> ForwardOutput:
        output = honest(self, batch)
        if len(batch.logit_rows) == 1:
            return output
        waves = 0.3 * np.sin(np.arange(output.rows.shape[1], dtype=np.float32))
        return replace(output, rows=(output.rows + waves).astype(np.float32))

    monkeypatch.setattr(Runner, "forward", disturbed)
    report = audit(
        pair[0], "float32", drafters(pair[1]), sampling="greedy", sets="off", conditions="cold"
    )
    (row,) = diverging(report)
    assert row.setting.concurrency == 8
    best = row.divergences[0].top_two
    assert best is not None
    assert row.divergences[0].expected == best.token_ids[0]
    assert 0.0 <= best.gap < 0.6


def prompt_file(folder: Path) -> Path:
    lines = [
        {"id": item.prompt_id, "prompt": item.text}
        if item.text
        else {"id": item.prompt_id, "messages": list(item.messages)}
        for item in PROMPTS
    ]
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def exit_status(*arguments: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(["audit", *arguments])
    return ended.value.code


def lossless_arguments(path: Path, folder: Path) -> list[str]:
    drafters = '["suffix", {"kind": "ngram", "min_n": 1}]'
    return [
        "lossless",
        *("--model", str(path), "--prompts", str(prompt_file(folder))),
        *("--max-tokens", "12", "--sampling", "greedy", "--concurrency", "4"),
        *("--json", str(folder / "out.json")),
        *_settings(SETTINGS | {"speculation.drafters": drafters}),
    ]


def test_the_command_ends_with_0_for_a_proof_and_writes_where_it_comes_from(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(*lossless_arguments(pair[0], tmp_path)) == 0
    assert "No answer differs." in capsys.readouterr().out
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["verdict"]["is_proof"] is True
    assert document["plan"]["drafters"] == [
        "configured",
        "off",
        "suffix",
        "ngram",
        "draft_model",
        "merge",
    ]
    assert document["target"]["fingerprint"] == document["verdict"]["fingerprints"][0]
    assert document["provenance"]["versions"]["torch"] == torch.__version__
    totals = document["totals"]
    counted = ("num_accepted", "num_rejected", "num_prefix_hits", "num_preemptions")
    assert all(totals[name] > 0 for name in counted)


def test_the_command_ends_with_1_where_an_answer_differs_and_shows_it(
    pair: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("slipstream.speculation.verification.verify", keep_every_draft)
    assert exit_status(*lossless_arguments(pair[0], tmp_path), "--allow-vacuous") == 1
    output = capsys.readouterr().out
    assert "The first divergence: prompt " in output
    assert "apart" in output
    assert json.loads((tmp_path / "out.json").read_text())["verdict"]["is_proof"] is False


def test_the_command_ends_with_1_where_nothing_was_put_to_the_test(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*lossless_arguments(pair[0], tmp_path), "--drafters", "off"]
    arguments += ["--conditions", "cold"]
    assert exit_status(*arguments) == 1
    assert "Not proven, nothing was drafted." in capsys.readouterr().out
    assert exit_status(*arguments, "--allow-vacuous") == 0


def test_a_drafter_that_is_not_shipped_for_the_target_is_no_set_of_its_own(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    arguments = lossless_arguments(pair[0], tmp_path)
    arguments = [*arguments[: arguments.index("--set")], *_settings(SETTINGS)]
    assert exit_status(*arguments, "--allow-vacuous") == 0
    sets = json.loads((tmp_path / "out.json").read_text())["plan"]["drafters"]
    assert sets == ["configured", "off", "suffix", "ngram", "draft_model", "merge"]
    assert exit_status(*arguments, "--drafters", "shipped") == 2


def _settings(settings: Mapping[str, object]) -> list[str]:
    return [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]


def test_a_wrong_name_is_a_usage_error(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert exit_status(*lossless_arguments(pair[0], tmp_path), "--drafters", "eagle9") == 2
    assert exit_status(*lossless_arguments(pair[0], tmp_path), "--only", "nobody") == 2


@pytest.fixture
def server_url(pair: tuple[Path, Path], tmp_path: Path) -> Iterator[str]:
    log = tmp_path / "log"
    command = [sys.executable, "-m", "slipstream.cli", "serve", "--model", str(pair[0])]
    command += ["--port", "0", "--set", 'speculation.drafters=["suffix","ngram"]']
    command += [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    with log.open("w") as output:
        server = subprocess.Popen(command, stderr=output, stdout=output)
    try:
        yield _wait_ready(server, log)
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0, log.read_text()


def _wait_ready(server: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        if found and httpx.get(f"{found[0]}/ready").status_code == 200:
            return found[0]
        time.sleep(0.2)
    pytest.fail(f"the server did not become ready:\n{log.read_text()}")


def test_a_live_server_is_audited_over_its_api(
    server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "lossless",
        *("--url", server_url, "--prompts", str(prompt_file(tmp_path)), "--max-tokens", "24"),
        *("--sampling", "greedy,t1.0", "--concurrency", "4", "--json", str(tmp_path / "out.json")),
    ]
    assert exit_status(*arguments) == 0, capsys.readouterr().out
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["totals"]["num_accepted"] > 0
    assert document["totals"]["num_prefix_hits"] > 0
    assert exit_status(*arguments, "--drafters", "suffix,nobody") == 2
    assert exit_status(*arguments, "--conditions", "preempted") == 2


def test_golden_status_says_whether_all_that_is_supported_passes(tmp_path: Path) -> None:
    write_target_fixture(tmp_path / "good")
    assert exit_status("golden", str(tmp_path), "--json", str(tmp_path / "out.json")) == 0
    assert json.loads((tmp_path / "out.json").read_text())["is_passed"] is True
    write_json(tmp_path / "other" / "table.json", [{"gamma": 3}])
    assert exit_status("golden", str(tmp_path)) == 0
    assert exit_status("golden", str(tmp_path), "--all") == 1
    (tmp_path / "good" / "model.safetensors").unlink()
    assert exit_status("golden", str(tmp_path)) == 1
    assert exit_status("golden", str(tmp_path / "missing")) == 2


@pytest.mark.model
def test_the_default_model_as_it_is_served_gives_the_same_tokens() -> None:
    memory: dict[str, Any] = {"memory.kv_bytes": "1GiB", "memory.page_size": 16}
    report = audit(
        default_model_path(),
        "auto",
        (NgramConfig(), SuffixConfig(), DraftModelConfig(source="target", num_children=2)),
        sampling="greedy,t1.0",
        sets="configured,merge",
        conditions="warm,chunked+preempted",
        **memory,
    )
    assert diverging(report) == []
    assert report.vacuous == ()
