"""From measured steps to where their time goes, and to what bandwidth would have allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from slipstream.bench.step_measure import StepSample
from slipstream.bench.step_plan import StepCase
from slipstream.execution.runner import Runner

PARTS = ("matrices", "attention", "other kernels", "head", "pass", "sampling", "host")
"""In the order of the table. `pass` is a whole pass in torch, which cannot be taken apart."""

_STAGES = {
    "matrices": ("qkv", "attention_output", "gate_up", "down"),
    "attention": ("attention",),
    "other kernels": ("embedding", "norms", "rotary", "gate"),
    "head": ("head",),
}


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What a step cannot but read.

    Attributes:
        matrices: Weights of the layers' products and the head's.
        weights: These and the norms'.
        kv: Keys and values, each request's once.
    """

    matrices: int
    weights: int
    kv: int


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Steps of one case.

    Attributes:
        parts_s: `PARTS` -> seconds; together `typical_s`. Parts that do not occur are absent.
        details_s: Finer: stages of the pass, and what the host did.
        typical_s: Mean over the middle half of the steps by their time; parts and details are
            means over the same steps.
        median_s, min_s: Over all steps.
        context_len: Mean of the tokens that a request's last row reads.
        matrices_share, step_share: Of the bandwidth: time that reading the bytes takes over time
            taken; of the products (head included) alone and of the whole step. None where the
            bandwidth or the products' time is not known.
        walls_s: Of every step, in order.
    """

    case: StepCase
    parts_s: Mapping[str, float]
    details_s: Mapping[str, float]
    typical_s: float
    median_s: float
    min_s: float
    context_len: float
    read: StepBytes
    matrices_share: float | None
    step_share: float | None
    walls_s: tuple[float, ...]

    @property
    def products_s(self) -> float | None:
        """Seconds of all products with weights; None where they are not known."""
        if "head" not in self.parts_s:
            return None
        return self.parts_s["matrices"] + self.parts_s["head"]


def step_costs(
    case: StepCase,
    samples: Sequence[StepSample],
    runner: Runner,
    bytes_per_s: float | None,
) -> StepCosts:
    """Of one case.

    Args:
        samples: At least one.
        runner: The target's.
        bytes_per_s: What the memory gives; None where it was not measured.
    """
    middle = _middle_half(samples)
    typical_s = fmean(sample.wall_s for sample in middle)
    parts_s, details_s = _parts(middle), _details(middle)
    read = read_bytes(runner, middle)
    products_s = parts_s["matrices"] + parts_s["head"] if "head" in parts_s else None
    walls_s = tuple(sample.wall_s for sample in samples)
    return StepCosts(
        case=case,
        parts_s=parts_s,
        details_s=details_s,
        typical_s=typical_s,
        median_s=median(walls_s),
        min_s=min(walls_s),
        context_len=fmean(tokens for sample in middle for tokens in sample.kv_tokens),
        read=read,
        matrices_share=_share(read.matrices, bytes_per_s, products_s),
        step_share=_share(read.weights + read.kv, bytes_per_s, typical_s),
        walls_s=walls_s,
    )


def weight_bytes(runner: Runner) -> tuple[int, int]:
    """Bytes of all matrices that a step multiplies with, and of these and the norms."""
    model = runner.model
    linears = [linear for layer in model.layers for linear in layer.linears()]
    norms = [norm for layer in model.layers for norm in layer.norms()]
    matrices = sum(linear.nbytes for linear in (*linears, model.head))
    return matrices, matrices + sum(norm.nbytes for norm in (*norms, model.final_norm))


def read_bytes(runner: Runner, samples: Sequence[StepSample]) -> StepBytes:
    """What these steps read on average."""
    matrices, weights = weight_bytes(runner)
    layers = runner.model.hparams.layers
    layer_bytes = runner.storage.bytes_per_token // len(layers)
    kv = [
        layer_bytes * sum(min(tokens, layer.window or tokens) for layer in layers)
        for sample in samples
        for tokens in sample.kv_tokens
    ]
    return StepBytes(matrices, weights, round(sum(kv) / len(samples)))


def _middle_half(samples: Sequence[StepSample]) -> list[StepSample]:
    ordered = sorted(samples, key=lambda sample: sample.wall_s)
    cut = len(ordered) // 4
    return ordered[cut : len(ordered) - cut]


def _parts(samples: Sequence[StepSample]) -> dict[str, float]:
    wall_s = fmean(sample.wall_s for sample in samples)
    parts = {}
    if samples[0].stage_s:
        for part, stages in _STAGES.items():
            parts[part] = fmean(sum(sample.stage_s[name] for name in stages) for sample in samples)
    else:
        parts["pass"] = fmean(sample.target_s for sample in samples)
    parts["sampling"] = fmean(sample.sample_s for sample in samples)
    return parts | {"host": wall_s - sum(parts.values())}


def _details(samples: Sequence[StepSample]) -> dict[str, float]:
    details = {
        f"stage {name}": fmean(sample.stage_s[name] for sample in samples)
        for name in samples[0].stage_s
    }
    if details:
        around_s = fmean(sample.target_s - sum(sample.stage_s.values()) for sample in samples)
        details["host around the pass"] = around_s
    details["host proposing"] = fmean(sample.draft_s for sample in samples)
    details["host committing"] = fmean(sample.commit_s for sample in samples)
    details["host scheduling, layout, events"] = fmean(
        sample.wall_s - sample.draft_s - sample.target_s - sample.sample_s - sample.commit_s
        for sample in samples
    )
    return details


def _share(num_bytes: int, bytes_per_s: float | None, seconds: float | None) -> float | None:
    if bytes_per_s is None or seconds is None or seconds <= 0.0:
        return None
    return num_bytes / bytes_per_s / seconds
