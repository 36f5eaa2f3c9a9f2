"""`slipstream doctor` from flags to verdict: a tiny target, and drafters that are well or ill."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slipstream.cli.main import main
from slipstream.models.drafts.hparams import DraftFamily
from slipstream.training.nets import TrainedNet
from tests.support.drafts import CONFIGS, tiny_tensors_of, write_draft
from tests.support.mtp import write_head_folder
from tests.support.tiny import write_tiny_tokenizer
from tests.support.trained_drafts import MAX_TOKENS, TAPS, WORDS, TaughtTarget, write_taught


@dataclass(frozen=True, slots=True)
class Told:
    """What one run of the command said."""

    status: int
    text: str
    document: dict[str, Any]  # Any: JSON

    def finding(self, check: str) -> dict[str, Any]:  # Any: JSON
        (found,) = (item for item in self.document["findings"] if item["check"] == check)
        return dict(found)


@pytest.fixture
def doctor(taught: TaughtTarget, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(taught, tmp_path, capsys)


@dataclass(frozen=True, slots=True)
class Doctor:
    """Runs the command on the taught target and its prompts."""

    taught: TaughtTarget
    path: Path
    capsys: pytest.CaptureFixture[str]

    def run(
        self,
        drafters: list[Any] | None = None,  # Any: tables of settings
        *flags: str,
        model: str | None = None,
    ) -> Told:
        prompts, report = self.path / "prompts.jsonl", self.path / "report.json"
        prompts.write_text("\n".join(json.dumps({"prompt": word}) for word in WORDS))
        settings = {
            "model.dtype": "float32",
            "memory.kv_bytes": "4MiB",
            "memory.page_size": "4",
            "engine.num_threads": "1",
        }
        if drafters is not None:
            settings["speculation.drafters"] = json.dumps(drafters)
        argv = ["doctor", "--model", model or str(self.taught.source), "--prompts", str(prompts)]
        argv += ["--max-tokens", str(MAX_TOKENS), "--json", str(report), *flags]
        argv += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        with pytest.raises(SystemExit) as ended:
            main(argv)
        document = json.loads(report.read_text()) if report.exists() else {}
        return Told(int(ended.value.code or 0), self.capsys.readouterr().out, document)


def dspark(path: Path, **fields: Any) -> dict[str, Any]:  # Any: settings
    return {"kind": "dspark", "source": str(path), "dtype": "float32"} | fields


def test_a_healthy_drafter_ends_with_status_0_and_its_numbers(
    doctor: Doctor, nets: dict[DraftFamily, TrainedNet], taught: TaughtTarget, tmp_path: Path
) -> None:
    path = write_taught(nets["dspark"], taught, tmp_path / "draft")

    told = doctor.run([dspark(path)])

    assert told.status == 0, told.text
    assert told.document["is_healthy"]
    assert {item["check"]: item["status"] for item in told.document["findings"]} == {
        "threads": "ok",
        "target files": "ok",
        "kernels": "warning",
        "memory": "ok",
        "tokenizer": "ok",
        "chat template": "ok",
        "dspark: files": "ok",
        "dspark: tokenizer": "ok",
        "dspark: acceptance": "ok",
        "dspark: served": "ok",
    }
    (drafter,) = told.document["drafters"]
    forced = drafter["teacher_forced"]
    assert forced["mean_acceptance_length"] > 2.0
    assert drafter["served_length"] > 2.0
    assert forced["suspect"] is None
    assert len(forced["conventions"]) > 10
    assert told.document["provenance"]["versions"]["slipstream"]
    assert "read with" not in told.text


def test_the_family_of_a_drafter_is_told_by_its_files(
    doctor: Doctor, nets: dict[DraftFamily, TrainedNet], taught: TaughtTarget, tmp_path: Path
) -> None:
    path = write_taught(nets["eagle3"], taught, tmp_path / "draft")
    told = doctor.run(None, "--drafter", str(path), "--all")
    assert told.status == 0, told.text
    assert told.finding("eagle3: acceptance")["status"] == "ok"
    assert "its own conventions" in told.text


def test_heads_are_told_by_their_files_and_measured_in_the_engine(
    doctor: Doctor, taught: TaughtTarget, tmp_path: Path
) -> None:
    path = write_head_folder(tmp_path / "head", taught.source)
    told = doctor.run(None, "--drafter", str(path))
    assert told.status == 0, told.text
    assert told.finding("mtp: files")["message"] == "1 head, Qwen layout"
    assert "mean acceptance length" in told.finding("mtp: acceptance")["message"]


def test_a_broken_convention_ends_with_status_1_and_a_hint(
    doctor: Doctor, nets: dict[DraftFamily, TrainedNet], taught: TaughtTarget, tmp_path: Path
) -> None:
    config = {"target_layer_ids": [layer + 1 for layer in TAPS]}
    path = write_taught(nets["dspark"], taught, tmp_path / "draft", config)

    told = doctor.run([dspark(path)])

    assert told.status == 1
    assert told.document["drafters"][0]["teacher_forced"]["suspect"] == "taps one layer earlier"
    assert "hint: dspark: acceptance: lower each of its layer ids by 1" in told.text
    assert "taps one layer earlier" in told.text


def test_a_drafter_for_another_target_leaves_the_rest_examined(
    doctor: Doctor, tmp_path: Path
) -> None:
    path = write_draft(tmp_path / "draft", CONFIGS["dspark"], tiny_tensors_of(CONFIGS["dspark"]))
    told = doctor.run([dspark(path), "suffix"])
    assert told.status == 1
    problems = [item["message"] for item in told.document["findings"] if item["status"] == "wrong"]
    assert any("taps have 64 values, the target's states 32" in text for text in problems)
    assert any("made for a target of 8 layers, this one has 4" in text for text in problems)
    assert told.finding("memory")["status"] == "ok"
    assert told.finding("suffix: acceptance")["status"] == "ok"


def test_a_tokenizer_of_other_tokens_is_named(
    doctor: Doctor, nets: dict[DraftFamily, TrainedNet], taught: TaughtTarget, tmp_path: Path
) -> None:
    path = write_taught(nets["dspark"], taught, tmp_path / "draft")
    write_tiny_tokenizer(path, 320)
    file = path / "tokenizer.json"
    file.write_text(file.read_text().replace("<|im_end|>", "<|the_end|>"))
    told = doctor.run([dspark(path)])
    assert told.status == 1
    assert "token 2 is '<|im_end|>' for the target" in told.finding("dspark: tokenizer")["message"]


def test_a_drafter_of_another_kind_or_place_is_named(
    doctor: Doctor, nets: dict[DraftFamily, TrainedNet], taught: TaughtTarget, tmp_path: Path
) -> None:
    path = write_taught(nets["dspark"], taught, tmp_path / "draft")
    told = doctor.run([dspark(path, kind="eagle3"), dspark(tmp_path / "nowhere", name="lost")])
    assert told.status == 1
    assert told.finding("eagle3: files")["hint"] == "say kind: dspark"
    assert "nowhere" in told.finding("lost: files")["message"]


def test_weights_that_a_drafter_was_not_trained_for_are_a_warning(
    doctor: Doctor, nets: dict[DraftFamily, TrainedNet], taught: TaughtTarget, tmp_path: Path
) -> None:
    path = write_taught(nets["dspark"], taught, tmp_path / "draft")
    made_for = taught.target.identity.model_dump() | {"name": "other", "weights_digest": "0" * 16}
    (path / "provenance.json").write_text(json.dumps({"run": {"target": made_for}}))
    told = doctor.run([dspark(path)])
    assert told.status == 0, told.text
    origin = told.finding("dspark: origin")
    assert origin["status"] == "warning"
    assert "it was trained for other (4 layers of 32" in origin["message"]


def test_a_target_that_is_not_there_is_told(doctor: Doctor, tmp_path: Path) -> None:
    told = doctor.run(["suffix"], model=str(tmp_path / "nothing"))
    assert told.status == 1
    assert told.finding("target files")["status"] == "wrong"
    assert "nothing" in told.text


def test_without_acceptance_nothing_is_answered(
    doctor: Doctor, nets: dict[DraftFamily, TrainedNet], taught: TaughtTarget, tmp_path: Path
) -> None:
    path = write_taught(nets["dspark"], taught, tmp_path / "draft")
    told = doctor.run([dspark(path)], "--no-acceptance")
    assert told.status == 0, told.text
    assert told.document["drafters"] == []


def test_a_drafter_with_a_missing_tensor_is_named(
    doctor: Doctor, taught: TaughtTarget, nets: dict[DraftFamily, TrainedNet], tmp_path: Path
) -> None:
    path = write_taught(nets["dspark"], taught, tmp_path / "draft", {"num_hidden_layers": 2})
    told = doctor.run([dspark(path)])
    assert told.status == 1
    problems = [item["message"] for item in told.document["findings"] if item["status"] == "wrong"]
    assert any("there is no tensor layers.1." in text for text in problems)


def test_a_truncated_drafter_is_named(
    doctor: Doctor, taught: TaughtTarget, nets: dict[DraftFamily, TrainedNet], tmp_path: Path
) -> None:
    path = write_taught(nets["dspark"], taught, tmp_path / "draft")
    whole = path / "model.safetensors"
    whole.write_bytes(whole.read_bytes()[:-100])
    told = doctor.run([dspark(path)])
    assert told.status == 1
    assert "model.safetensors" in told.finding("dspark: files")["message"]
