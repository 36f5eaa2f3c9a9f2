"""Which source a text names, and what each says when it cannot help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.config.model import ModelConfig
from slipstream.errors import CapacityError, ChecksumError, WeightsError
from slipstream.weights.cache import ModelCache
from slipstream.weights.hub_source import HubSource
from slipstream.weights.local_source import LocalSource
from slipstream.weights.manifest import sha256_of
from slipstream.weights.progress import SilentProgress
from slipstream.weights.sources import (
    DEFAULT_SHA256,
    DEFAULT_WHEEL,
    resolve_source,
    source_of,
)
from slipstream.weights.wheel_source import WheelSource
from tests.support.file_server import FileServer, file_server
from tests.support.models import default_model_path
from tests.support.tiny import write_tiny_checkpoint
from tests.support.wheels import write_wheel
from tests.unit.weights.recording import RecordingProgress


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "cache")


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("default", WheelSource, DEFAULT_WHEEL),
        ("wheel:a-model==1.0/a/w.gguf", WheelSource, "wheel:a-model==1.0/a/w.gguf"),
        ("org/name", HubSource, "org/name@main"),
        ("org/name-1.5B_x:file.Q4_K_M.gguf", HubSource, "org/name-1.5B_x@main:file.Q4_K_M.gguf"),
    ],
)
def test_a_text_names_a_source(text: str, kind: type, name: str) -> None:
    source = source_of(ModelConfig(source=text))

    assert isinstance(source, kind)
    assert source.name == name


def test_a_path_that_exists_wins_over_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tiny_checkpoint(Path("org/name"), num_layers=1)

    assert isinstance(source_of(ModelConfig(source="org/name")), LocalSource)


def test_a_revision_is_part_of_a_hub_sources_name() -> None:
    source = source_of(ModelConfig(source="org/name", revision="v1"))

    assert source.name == "org/name@v1"


@pytest.mark.parametrize("text", ["wheel:nothing", "wheel:a==1", "wheel:a/w.gguf"])
def test_a_malformed_wheel_is_told_the_form(text: str) -> None:
    with pytest.raises(WeightsError, match="NAME==VERSION/MEMBER"):
        source_of(ModelConfig(source=text))


@pytest.mark.parametrize("text", ["./nowhere/model.gguf", "/no/such/path", "name", "a/b/c"])
def test_a_text_that_names_nothing_lists_what_would(text: str) -> None:
    with pytest.raises(WeightsError, match="no existing path") as caught:
        source_of(ModelConfig(source=text))

    assert caught.value.hint is not None
    assert "wheel:NAME==VERSION/MEMBER" in caught.value.hint


def test_a_checksum_needs_one_file_to_be_about(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "tiny", num_layers=1)
    (folder / "second.safetensors").touch()

    with pytest.raises(WeightsError, match="has 2 weights files"):
        resolve_source(ModelConfig(source=str(folder), sha256="0" * 64), progress=SilentProgress())


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    write_wheel(tmp_path / "links", "tiny_model", "1.0", {"tiny/w.gguf": b"weights"})
    return tmp_path / "links"


def test_a_member_that_the_wheel_lacks_is_answered_with_its_members(
    links: Path, cache: ModelCache
) -> None:
    with pytest.raises(WeightsError, match=r"no member 'tiny/v\.gguf'") as caught:
        WheelSource("tiny-model==1.0", "tiny/v.gguf", cache).resolve(SilentProgress())

    assert caught.value.hint is not None
    assert "tiny/w.gguf" in caught.value.hint


def test_a_folder_of_the_wheel_brings_the_files_in_it(links: Path, cache: ModelCache) -> None:
    members = {"tiny/config.json": b"{}", "tiny/model.safetensors": b"w", "tiny/deep/x": b"x"}
    write_wheel(links, "tiny_model", "1.0", members)

    path = WheelSource("tiny-model==1.0", "tiny", cache).resolve(SilentProgress())

    assert (path / "config.json").read_bytes() == b"{}"
    assert (path / "model.safetensors").read_bytes() == b"w"
    assert not (path / "deep").exists()


def test_an_unknown_version_is_told_in_pips_words(links: Path, cache: ModelCache) -> None:
    with pytest.raises(WeightsError, match=r"tiny-model==9 .*from versions: 1\.0"):
        WheelSource("tiny-model==9", "tiny/w.gguf", cache).resolve(SilentProgress())


def test_an_index_that_offers_nothing_counts_as_unreachable(links: Path, cache: ModelCache) -> None:
    with pytest.raises(WeightsError, match="index cannot be reached for other==1"):
        WheelSource("other==1", "w.gguf", cache).resolve(SilentProgress())


def test_a_python_without_pip_is_explained(cache: ModelCache, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip"\nexit 1\n')
    python.chmod(0o755)

    source = WheelSource("a==1", "w.gguf", cache, python=str(python))
    with pytest.raises(WeightsError, match="No module named pip") as caught:
        source.resolve(SilentProgress())

    assert caught.value.hint is not None
    assert "install pip" in caught.value.hint


def test_a_full_disk_while_pip_downloads_is_a_capacity_error(
    cache: ModelCache, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'OSError: [Errno 28] No space left on device'\nexit 1\n")
    python.chmod(0o755)

    with pytest.raises(CapacityError, match=r"^no space is left for \S+ in \S+$"):
        WheelSource("a==1", "w.gguf", cache, python=str(python)).resolve(SilentProgress())


def test_a_damaged_wheel_is_named(links: Path, cache: ModelCache) -> None:
    path = write_wheel(links, "tiny_model", "1.0", {"tiny/w.gguf": bytes(range(256)) * 8})
    content = bytearray(path.read_bytes())
    content[100] ^= 0xFF  # inside the member's compressed bytes
    path.write_bytes(content)

    with pytest.raises(WeightsError, match=r"pip cannot fetch|not a usable wheel"):
        WheelSource("tiny-model==1.0", "tiny/w.gguf", cache).resolve(SilentProgress())


def test_growing_files_of_pip_are_reported(cache: ModelCache, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, "tiny_model", "1.0", {"w.gguf": b"weights" * 1000})
    python = tmp_path / "python"
    # A stand-in for pip: announces a size, writes half, waits, writes the rest.
    python.write_text(
        "#!/bin/sh\n"
        "echo 'Downloading tiny_model-1.0-py3-none-any.whl (1.5 kB)'\n"
        f'head -c 300 {wheel} > "$TMPDIR/part.whl"\n'
        "sleep 0.3\n"
        f'mv "$TMPDIR/part.whl" "$TMPDIR/tiny.whl"; cat {wheel} > "$TMPDIR/tiny.whl"\n'
    )
    python.chmod(0o755)
    progress = RecordingProgress()

    source = WheelSource("tiny-model==1.0", "w.gguf", cache, python=str(python))
    path = source.resolve(progress)

    assert path.read_bytes() == b"weights" * 1000
    assert progress.totals == [None, 1500, 7000]
    assert sum(progress.bytes_done[:2]) == wheel.stat().st_size


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as server:
        yield server


def test_a_hub_repository_brings_what_a_checkpoint_needs_and_no_more(
    server: FileServer, cache: ModelCache, tmp_path: Path
) -> None:
    folder = write_tiny_checkpoint(tmp_path / "tiny", num_layers=1)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    surplus = {"README.md": b"#", "pytorch_model.bin": b"pickle", "consolidated.safetensors": b""}
    server.repos["org/tiny"] = files | surplus

    path = HubSource("org/tiny", cache, endpoint=server.url).resolve(SilentProgress())

    (model,) = cache.models()
    assert model.manifest is not None
    assert set(model.manifest.files) == set(files)
    assert sha256_of(path / "model.safetensors") == sha256_of(folder / "model.safetensors")
    assert model.manifest.revision is not None
    assert len(model.manifest.revision) == 40


@pytest.mark.parametrize("asked", ["org/drafter", "org/drafter:draft.gguf"])
def test_a_drafter_s_gguf_brings_what_is_told_of_it(
    asked: str, server: FileServer, cache: ModelCache
) -> None:
    files = {"draft.gguf": b"a", "calibration.json": b"{}", "provenance.json": b"{}"}
    files["mask_embedding.pt"] = b"pickled"  # known to be there, never read
    server.repos["org/drafter"] = {**files, "README.md": b"#", "other/calibration.json": b"{}"}
    repo, _, file = asked.partition(":")

    HubSource(repo, cache, file=file or None, endpoint=server.url).resolve(SilentProgress())

    (model,) = cache.models()
    assert model.manifest is not None
    assert set(model.manifest.files) == set(files)


def test_one_gguf_file_of_several_must_be_chosen(server: FileServer, cache: ModelCache) -> None:
    server.repos["org/many"] = {"a.gguf": b"a", "b.gguf": b"b"}

    with pytest.raises(WeightsError, match="2 GGUF files") as caught:
        HubSource("org/many", cache, endpoint=server.url).resolve(SilentProgress())

    assert caught.value.hint == "choose one, as in org/many:a.gguf"
    source = HubSource("org/many", cache, file="b.gguf", endpoint=server.url)
    assert (source.resolve(SilentProgress()) / "b.gguf").read_bytes() == b"b"


def test_pickled_weights_are_never_fetched(server: FileServer, cache: ModelCache) -> None:
    server.repos["org/old"] = {"pytorch_model.bin": b"pickle"}

    with pytest.raises(WeightsError, match="no safetensors"):
        HubSource("org/old", cache, endpoint=server.url).resolve(SilentProgress())


@pytest.mark.parametrize(
    ("status", "message"), [(401, "private or gated"), (404, "does not have"), (500, "answers 500")]
)
def test_the_hubs_refusals_are_explained(
    server: FileServer, cache: ModelCache, status: int, message: str
) -> None:
    server.statuses["/api/models/org/name/revision/main"] = [status] * 20

    with pytest.raises(WeightsError, match=message):
        HubSource("org/name", cache, endpoint=server.url).resolve(SilentProgress())


def test_a_hub_out_of_reach_is_explained(cache: ModelCache) -> None:
    with pytest.raises(WeightsError, match="cannot reach the hub for org/name"):
        HubSource("org/name", cache, endpoint="http://127.0.0.1:1").resolve(SilentProgress())


def test_a_file_that_the_hub_changed_on_the_way_is_refused(
    server: FileServer, cache: ModelCache, tmp_path: Path
) -> None:
    server.repos["org/tiny"] = {"model.safetensors": b"promised", "config.json": b"{}"}
    listing = server.content("/api/models/org/tiny/revision/main")
    assert listing is not None
    server.files["/api/models/org/tiny/revision/main"] = listing
    server.repos["org/tiny"]["model.safetensors"] = b"exchange"

    with pytest.raises(ChecksumError, match="does not have the SHA-256"):
        HubSource("org/tiny", cache, endpoint=server.url).resolve(SilentProgress())

    assert cache.models() == []


@pytest.mark.model
def test_the_default_model_is_the_promised_file() -> None:
    assert sha256_of(default_model_path()) == DEFAULT_SHA256
