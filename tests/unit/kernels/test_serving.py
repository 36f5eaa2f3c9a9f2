"""What is told of a checkpoint before it is loaded: who will multiply, and what is widened."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slipstream.attention import native
from slipstream.attention.backend import AttentionShape
from slipstream.kernels import library
from slipstream.kernels.serving import HEAD_LEN_STEP, foresee_serving
from tests.support.native import native_kernels

DEFAULT = {"Q4_1": 106_000_000, "Q8_0": 28_000_000, "F32": 35_000}


@pytest.fixture
def _kernels() -> None:
    native_kernels()


@pytest.mark.usefixtures("_kernels")
def test_formats_of_the_kernels_are_multiplied_as_stored_and_others_are_widened() -> None:
    serving = foresee_serving(DEFAULT | {"Q6_K": 1000, "Q5_0": 10, "BF16": 5}, 64, "auto")
    assert serving.kernels.startswith("native (")
    assert serving.as_stored == ("Q4_1", "Q8_0")
    assert serving.widened == ("Q6_K", "Q5_0")


@pytest.mark.parametrize(
    ("head_dim", "dtype", "reason"),
    [(64, "float32", "model.dtype is float32"), (24, "auto", "a multiple of 16 values, .* 24")],
)
def test_what_the_kernels_cannot_serve_is_served_by_torch_and_says_why(
    head_dim: int, dtype: str, reason: str
) -> None:
    serving = foresee_serving(DEFAULT, head_dim, dtype)
    assert serving.kernels.startswith("torch, several times slower: ")
    assert re.search(reason, serving.kernels)
    assert serving.widened == ("Q4_1", "Q8_0")


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize(
    ("formats", "dtype", "activations", "told"),
    [
        (DEFAULT, "auto", "auto", "bfloat16"),
        (DEFAULT, "auto", "int8", "int8"),
        ({"BF16": 1000}, "auto", "int8", None),
        ({"Q6_K": 1000}, "auto", "int8", None),
        (DEFAULT, "float32", "int8", None),
        (DEFAULT, "float32", "auto", "float32"),
    ],
)
def test_activations_are_told_as_they_will_be_or_as_refused(
    formats: dict[str, int], dtype: str, activations: str, told: str | None
) -> None:
    assert foresee_serving(formats, 64, dtype, activations).activations == told


def test_without_a_library_the_reason_and_the_remedy_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(library, "LIBRARY_NAME", "nowhere.so")
    told = foresee_serving(DEFAULT, 64, "auto").kernels
    assert "was not built" in told
    assert "python -m slipstream.kernels.build" in told


def test_the_rule_for_heads_is_that_of_the_kernels() -> None:
    for head_dim in range(1, 300):
        shape = AttentionShape(num_heads=4, kv_heads=2, head_dim=head_dim, scale=1.0)
        assert native.fits(shape) == (head_dim % HEAD_LEN_STEP == 0)
