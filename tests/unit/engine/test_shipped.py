"""Drafters that come with Slipstream are found by target, and by nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slipstream.config.speculation import (
    DSparkConfig,
    Eagle3Config,
    NgramConfig,
    ShippedConfig,
    SpeculationConfig,
    SuffixConfig,
)
from slipstream.engine.shipped import choose_shipped
from slipstream.errors import ConfigError
from slipstream.models.drafts.catalog import FOLDER, read_shipped
from slipstream.models.identity import TargetIdentity

BITS = 16.0
PEAKS, OTHER_PEAKS = (0, 3, 7, 7), (5, 1, 2, 6)
TARGET = TargetIdentity(
    name="mine",
    num_layers=4,
    hidden_size=8,
    vocab_size=32,
    weights_digest="abc",
    embedding_peaks=PEAKS,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    others = {"target": "Other", "num_layers": 4, "hidden_size": 8, "vocab_size": 32}
    shape = {"target": "Mine", "num_layers": 4, "hidden_size": 8, "vocab_size": 32}
    entries = [
        {"file": "best.gguf", "kind": "dspark", "embedding_peaks": PEAKS, **shape},
        {"file": "other.gguf", "kind": "eagle3", "embedding_peaks": PEAKS, **shape},
        {"file": "its.gguf", "kind": "dspark", "embedding_peaks": OTHER_PEAKS, **others},
    ]
    (tmp_path / "catalog.json").write_text(json.dumps({"drafters": entries}))
    return tmp_path


def test_the_first_that_fits_takes_the_place_of_shipped(folder: Path) -> None:
    wanted = (SuffixConfig(), ShippedConfig(num_children=3, max_draft_len=5))
    suffix, chosen = choose_shipped(wanted, TARGET, BITS, folder)
    assert suffix == SuffixConfig()
    assert chosen == DSparkConfig(
        name="shipped", source=str(folder / "best.gguf"), num_children=3, max_draft_len=5
    )


def test_a_target_without_one_drafts_with_the_rest(folder: Path) -> None:
    stranger = TARGET.model_copy(update={"embedding_peaks": (1, 1, 1, 1)})
    assert choose_shipped((NgramConfig(), ShippedConfig()), stranger, BITS, folder) == (
        NgramConfig(),
    )


def test_another_format_of_the_same_weights_fits(folder: Path) -> None:
    other = {"weights_digest": "def", "embedding_peaks": (0, 3, 7, 2)}
    (chosen,) = choose_shipped((ShippedConfig(),), TARGET.model_copy(update=other), BITS, folder)
    assert isinstance(chosen, DSparkConfig)
    less = TARGET.model_copy(update={"embedding_peaks": (0, 3, 2, 2)})
    assert choose_shipped((ShippedConfig(),), less, BITS, folder) == ()


def test_the_same_weights_in_another_shape_does_not_fit(folder: Path) -> None:
    other = TARGET.model_copy(update={"hidden_size": 16})
    assert choose_shipped((ShippedConfig(),), other, BITS, folder) == ()


def test_a_kind_without_source_takes_the_shipped_one_of_its_kind(folder: Path) -> None:
    (chosen,) = choose_shipped((Eagle3Config(num_children=2),), TARGET, BITS, folder)
    assert chosen == Eagle3Config(num_children=2, source=str(folder / "other.gguf"))


def test_a_kind_that_is_not_shipped_is_refused_by_name(folder: Path) -> None:
    other = TARGET.model_copy(update={"embedding_peaks": OTHER_PEAKS})
    with pytest.raises(ConfigError, match=r"kind eagle3 is shipped for mine .* dspark for Mine"):
        choose_shipped((Eagle3Config(),), other, BITS, folder)


def test_a_source_that_is_given_stays(folder: Path) -> None:
    given = DSparkConfig(source="org/drafter")
    assert choose_shipped((given,), TARGET, BITS, folder) == (given,)


def test_what_the_catalog_lists_is_in_the_package() -> None:
    for entry in read_shipped().drafters:
        assert (FOLDER / entry.file).stat().st_size <= 16 * 2**20


def test_one_that_asks_for_wide_weights_is_left_out_where_they_are_narrow(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = (SuffixConfig(), ShippedConfig(min_target_bits=12.0))
    assert len(choose_shipped(wanted, TARGET, 16.0, folder)) == 2
    with caplog.at_level("INFO"):
        assert choose_shipped(wanted, TARGET, 5.0, folder) == (SuffixConfig(),)
    assert "left out: in 5.0 bits" in caplog.text
    assert len(choose_shipped((ShippedConfig(),), TARGET, 5.0, folder)) == 1


def test_by_default_the_shipped_one_drafts_for_wide_weights_alone() -> None:
    suffix, shipped = SpeculationConfig().drafters
    assert suffix == SuffixConfig()
    assert isinstance(shipped, ShippedConfig)
    assert 8.5 < shipped.min_target_bits <= 16.0
