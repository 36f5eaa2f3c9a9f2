"""One run of `slipstream bench kernels`, and its JSON form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from slipstream.attention import native
from slipstream.attention.reference import TorchAttention
from slipstream.bench.bandwidth import BandwidthMeter
from slipstream.bench.contest import KernelCase, KernelTimes, hold_contest
from slipstream.bench.kernel_attention import KV_DTYPES, AttentionCases
from slipstream.bench.kernel_products import ProductCases, Shapes, fits, shapes_of
from slipstream.bench.kernel_rows import RowCases
from slipstream.bench.provenance import Provenance
from slipstream.clock import Clock
from slipstream.errors import ConfigError
from slipstream.kernels.library import KernelLibrary, open_kernels
from slipstream.models.decoder import attention_shape
from slipstream.models.hparams import Hparams
from slipstream.models.layers.linear import LinearFactory
from slipstream.models.load import read_hparams
from slipstream.weights.open import open_checkpoint

FORMAT = 1
KIND = "slipstream bench kernels"


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """What is measured.

    Attributes:
        formats: Of weights, by the names of `kernels.structs.FORMATS`; with `:int8` behind it,
            rows enter in 8 bit.
        context_len: Tokens before the rows, for attention.
        num_repeats: Timed runs of every way.
    """

    rows: tuple[int, ...]
    formats: tuple[str, ...]
    context_len: int
    num_repeats: int


@dataclass(frozen=True, slots=True)
class KernelRun:
    """Everything that a run says.

    Attributes:
        facts: Model, instruction set, threads.
        rotation_bytes: Format -> bytes of the copies that products go round at least: what a step
            reads in this format.
        bytes_per_s: Format -> median rate of reading so many bytes.
        notes: What was left out, and why.
    """

    provenance: Provenance
    facts: Mapping[str, Any]  # Any: JSON values
    plan: KernelPlan
    rotation_bytes: Mapping[str, int]
    bytes_per_s: Mapping[str, float]
    times: tuple[KernelTimes, ...]
    notes: tuple[str, ...]


@dataclass
class _Results:
    """What has been measured so far."""

    rotation_bytes: dict[str, int] = field(default_factory=dict)
    bytes_per_s: dict[str, float] = field(default_factory=dict)
    times: list[KernelTimes] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run_kernels(
    path: Path,
    plan: KernelPlan,
    provenance: Provenance,
    clock: Clock,
    on_part: Callable[[], None] = lambda: None,
) -> KernelRun:
    """Measure the kernels on matrices of a model's shapes; its weights are not read.

    Args:
        path: The model.
        on_part: Called `num_parts` times.
    Raises:
        ConfigError: The native kernels are not there.
        SlipstreamError: The model cannot be read.
    """
    library = open_kernels()
    if library is None:
        raise ConfigError(
            "the native kernels are not there, so there is nothing to measure",
            hint="install a C++17 compiler and run: python -m slipstream.kernels.build",
        )
    checkpoint = open_checkpoint(path)
    hparams = read_hparams(checkpoint.config)
    bench = _KernelBench(library, hparams, plan, clock, on_part)
    with torch.inference_mode():
        results = bench.run()
    return KernelRun(
        provenance=provenance,
        facts={
            "model": path.name,
            "family": hparams.family,
            "isa": library.isa_name,
            "num_threads": torch.get_num_threads(),
        },
        plan=plan,
        rotation_bytes=results.rotation_bytes,
        bytes_per_s=results.bytes_per_s,
        times=tuple(results.times),
        notes=tuple(results.notes),
    )


def num_parts(plan: KernelPlan) -> int:
    """How often `on_part` is called."""
    return len(plan.formats) * 5 + 2


class _KernelBench:
    """Goes through all cases; of weights only those of one shape and format are held at a time."""

    def __init__(
        self,
        library: KernelLibrary,
        hparams: Hparams,
        plan: KernelPlan,
        clock: Clock,
        on_part: Callable[[], None],
    ) -> None:
        self._library = library
        self._hparams = hparams
        self._plan = plan
        self._clock = clock
        self._on_part = on_part
        self._results = _Results()

    def run(self) -> _Results:
        shapes = shapes_of(self._hparams)
        factory = LinearFactory(torch.bfloat16)
        for format_name in self._plan.formats:
            self._products(shapes, factory, format_name)
        self._attention()
        self._rows()
        return self._results

    def _products(self, shapes: Shapes, factory: LinearFactory, format_name: str) -> None:
        results = self._results
        rotation_bytes = shapes.step_bytes(self._library, format_name)
        results.rotation_bytes[format_name] = rotation_bytes
        memory = BandwidthMeter(self._library, rotation_bytes, self._clock)
        rates = memory.read()
        for name, shape in shapes.items():
            if not fits(format_name, shape[1]):
                results.notes.append(
                    f"{name} has {shape[1]} inputs: no whole blocks of {format_name}"
                )
                self._on_part()
                continue
            cases = ProductCases(
                self._library, factory, format_name, name, shape, rotation_bytes=rotation_bytes
            )
            rates += memory.read()
            for num_rows in self._plan.rows:
                self._hold(cases.case(num_rows), median(rates))
            self._on_part()
        results.bytes_per_s[format_name] = median(rates)

    def _attention(self) -> None:
        shape = attention_shape(self._hparams)
        if native.fits(shape):
            twin = TorchAttention(shape)
            for dtype in KV_DTYPES:
                cases = AttentionCases(
                    self._library,
                    shape,
                    dtype,
                    num_layers=self._hparams.num_layers,
                    context_len=self._plan.context_len,
                    max_rows=max(self._plan.rows),
                    twin=twin,
                )
                for num_rows in self._plan.rows:
                    self._hold(cases.case(num_rows), self._rate())
        else:
            self._results.notes.append(f"heads of {shape.head_dim} have no native attention")
        self._on_part()

    def _rows(self) -> None:
        with _one_thread():
            cases = RowCases(self._library, self._hparams)
            for num_rows in self._plan.rows:
                for case in cases.cases(num_rows):
                    self._hold(case, self._rate())
            for format_name in self._plan.formats:
                if fits(format_name, self._hparams.hidden_size):
                    for num_rows in self._plan.rows:
                        self._hold(cases.embedding(num_rows, format_name), self._rate())
        self._on_part()

    def _hold(self, case: KernelCase, bytes_per_s: float) -> None:
        repeats = self._plan.num_repeats
        self._results.times.append(hold_contest(case, bytes_per_s, repeats, self._clock))

    def _rate(self) -> float:
        return median(self._results.bytes_per_s.values())


@contextmanager
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def as_json(run: KernelRun) -> dict[str, Any]:  # Any: JSON values
    """The run as JSON values; times are in microseconds, which six digits do not round away."""
    return {
        "kind": KIND,
        "format": FORMAT,
        "provenance": asdict(run.provenance),
        "target": dict(run.facts),
        "plan": asdict(run.plan),
        "rotation_bytes": dict(run.rotation_bytes),
        "bytes_per_s": dict(run.bytes_per_s),
        "notes": run.notes,
        "kernels": [
            {
                "group": times.group,
                "kernel": times.kernel,
                "num_rows": times.num_rows,
                "num_bytes": times.num_bytes,
                "microseconds": {name: value * 1e6 for name, value in times.seconds.items()},
                "bandwidth_share": times.bandwidth_share,
            }
            for times in run.times
        ],
    }
