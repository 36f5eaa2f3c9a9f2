"""From samples to parts and shares."""

from __future__ import annotations

import pytest
import torch

from slipstream.bench.step_costs import PARTS, StepCosts, step_costs
from slipstream.bench.step_measure import StepSample
from slipstream.bench.step_plan import StepCase
from slipstream.execution.runner import Runner
from slipstream.kernels.structs import STAGES
from tests.support.passes import make_runner
from tests.support.tiny import write_tiny_checkpoint

CASE = StepCase(8, "draft")
STAGE_S = 0.001


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("model")
    runner = make_runner(write_tiny_checkpoint(path, "mistral", num_layers=2))
    torch.set_num_threads(num_threads)
    return runner


def sample(wall_s: float = 0.020, *, is_traced: bool = True) -> StepSample:
    return StepSample(
        wall_s=wall_s,
        draft_s=0.001,
        target_s=0.012,
        sample_s=0.003,
        commit_s=0.002,
        stage_s=dict.fromkeys(STAGES, STAGE_S) if is_traced else {},
        kv_tokens=(100,),
    )


def costs_of(runner: Runner, *samples: StepSample, rate: float | None = 1e9) -> StepCosts:
    return step_costs(CASE, samples, runner, rate)


def test_the_parts_are_the_whole_step(runner: Runner) -> None:
    costs = costs_of(runner, sample())
    assert sum(costs.parts_s.values()) == pytest.approx(costs.typical_s)
    assert costs.parts_s == pytest.approx(
        {
            "matrices": 4 * STAGE_S,
            "attention": STAGE_S,
            "other kernels": 4 * STAGE_S,
            "head": STAGE_S,
            "sampling": 0.003,
            "host": 0.007,
        }
    )
    assert costs.products_s == pytest.approx(5 * STAGE_S)


def test_the_host_is_taken_apart_without_a_rest(runner: Runner) -> None:
    costs = costs_of(runner, sample())
    host = [seconds for name, seconds in costs.details_s.items() if name.startswith("host")]
    assert sum(host) == pytest.approx(costs.parts_s["host"])


def test_a_pass_in_torch_is_one_part_and_its_products_are_unknown(runner: Runner) -> None:
    costs = costs_of(runner, sample(is_traced=False))
    assert costs.parts_s == pytest.approx({"pass": 0.012, "sampling": 0.003, "host": 0.005})
    assert costs.products_s is None
    assert costs.matrices_share is None
    assert costs.step_share is not None
    assert set(costs.parts_s) <= set(PARTS)


def test_a_busy_moment_does_not_count(runner: Runner) -> None:
    costs = costs_of(runner, *[sample()] * 6, sample(9.0), sample(0.001))
    assert costs.typical_s == pytest.approx(0.020)
    assert costs.min_s == 0.001
    assert len(costs.walls_s) == 8


def test_bytes_are_those_of_the_weights_and_of_what_the_window_lets_a_row_see(
    runner: Runner,
) -> None:
    read = costs_of(runner, sample()).read
    hparams = runner.model.hparams
    shapes = [linear.shape for layer in runner.model.layers for linear in layer.linears()]
    shapes.append(runner.model.head.shape)
    assert read.matrices == sum(4 * num_out * num_in for num_out, num_in in shapes)
    assert read.weights == read.matrices + 4 * hparams.hidden_size * (2 * 2 + 1)
    window = hparams.layers[0].window
    assert window == 16
    assert read.kv == window * runner.storage.bytes_per_token


def test_shares_are_the_time_of_reading_over_the_time_taken(runner: Runner) -> None:
    costs = costs_of(runner, sample(), rate=1e8)
    read = costs.read
    assert costs.matrices_share == pytest.approx(read.matrices / 1e8 / (5 * STAGE_S))
    assert costs.step_share == pytest.approx((read.weights + read.kv) / 1e8 / 0.020)


def test_without_a_bandwidth_there_is_no_share(runner: Runner) -> None:
    costs = costs_of(runner, sample(), rate=None)
    assert costs.matrices_share is None
    assert costs.step_share is None
