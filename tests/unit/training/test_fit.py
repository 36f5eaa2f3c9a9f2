from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from slipstream.errors import ConfigError, WeightsError
from slipstream.models.drafts.hparams import DraftFamily
from slipstream.training.begin import Beginning, begin_with
from slipstream.training.dataset import Dataset
from slipstream.training.families.table import family_for
from slipstream.training.fit import fit
from slipstream.training.given import open_given
from slipstream.training.packing import arrange, cut_answers
from slipstream.training.plot import write_plot
from slipstream.training.run_folder import Progress, RunFolder, RunRecord
from slipstream.training.schedule import PackStream, learning_rate
from slipstream.training.session import TrainingTarget, open_source, write_fixed
from slipstream.training.settings import RunSettings
from slipstream.training.trainer import Trainer
from slipstream.training.workers import DistributedWorkers, PeerError, require_work_for_all
from tests.support.training import (
    FAMILIES,
    PACK_LEN,
    QuietReporting,
    counting_answers,
    empty_tally,
    fixed_parts,
    tiny_settings,
    trainer_of,
    write_dataset,
)


@pytest.fixture
def dataset(target: TrainingTarget, tmp_path: Path) -> Dataset:
    return write_dataset(tmp_path / "data", target, counting_answers(12))


def run(
    trainer: Trainer,
    settings: RunSettings,
    dataset: Dataset,
    folder: Path,
    dies_after: int | None = None,
) -> Progress:
    return fit(
        trainer,
        settings,
        cut_answers(dataset.answers, dataset.indices("train"), PACK_LEN),
        arrange(cut_answers(dataset.answers, dataset.indices("validation"), PACK_LEN), PACK_LEN, 0),
        RunFolder(folder),
        QuietReporting(dies_after).reporting(),
    )


def begin(path: Path, settings: RunSettings, target: TrainingTarget, dataset: Dataset) -> None:
    folder = RunFolder(path)
    folder.begin(
        RunRecord(target=target.identity, dataset_sha256=dataset.manifest.sha256, settings=settings)
    )
    write_fixed(folder, fixed_parts(settings))


def start_with(
    path: Path, settings: RunSettings, target: TrainingTarget, dataset: Dataset
) -> Beginning:
    source = open_source(target, dataset, settings.net.tap_layer_ids, None)
    return begin_with(open_given(str(path), target), settings, target, dataset, source)


@pytest.mark.parametrize("family", ["dspark", "eagle3"])
def test_a_killed_run_goes_on_to_the_same_bits(
    family: DraftFamily, target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    settings = tiny_settings(family, dtype="bfloat16")
    whole = trainer_of(settings, target, dataset)
    of_whole = run(whole, settings, dataset, tmp_path / "whole")

    killed = trainer_of(settings, target, dataset)
    with pytest.raises(KeyboardInterrupt):
        run(killed, settings, dataset, tmp_path / "killed", dies_after=3)
    resumed = trainer_of(settings, target, dataset)
    of_resumed = run(resumed, settings, dataset, tmp_path / "killed")

    assert of_resumed.history == of_whole.history
    assert of_resumed.num_tokens == of_whole.num_tokens
    expected = whole.state()
    for name, tensor in resumed.state().items():
        assert torch.equal(tensor, expected[name]), name


def test_a_finished_run_is_not_trained_further(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    settings = tiny_settings("dspark", num_steps=2)
    first = trainer_of(settings, target, dataset)
    run(first, settings, dataset, tmp_path / "run")
    again = trainer_of(settings, target, dataset)
    progress = run(again, settings, dataset, tmp_path / "run")
    assert progress.step == 2
    assert torch.equal(first.state()["parameter/fc.weight"], again.state()["parameter/fc.weight"])


def test_a_truncated_checkpoint_is_refused_by_name(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    settings = tiny_settings("dspark", num_steps=2)
    run(trainer_of(settings, target, dataset), settings, dataset, tmp_path / "run")
    file = tmp_path / "run/checkpoints/step-0000002/tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="step-0000002 is damaged"):
        RunFolder(tmp_path / "run").newest()


def test_another_runs_settings_are_refused_by_name(target: TrainingTarget, tmp_path: Path) -> None:
    settings = tiny_settings("dspark")
    folder = RunFolder(tmp_path / "run")
    record = RunRecord(target=target.identity, dataset_sha256="0", settings=settings)
    folder.begin(record)
    folder.begin(record)
    changed = tiny_settings("dspark", learning_rate=0.5)
    with pytest.raises(ConfigError, match=r"settings\.fit\.learning_rate \(0\.05 there, 0\.5 now"):
        folder.begin(record.model_copy(update={"settings": changed}))


def test_a_dataset_without_answers_to_train_on_is_refused(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    settings = tiny_settings("dspark")
    trainer = trainer_of(settings, target, dataset)
    with pytest.raises(ConfigError, match="no answer to train on"):
        fit(trainer, settings, [], [], RunFolder(tmp_path / "run"), QuietReporting().reporting())


def test_a_training_that_diverges_ends_and_keeps_what_was_good(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    settings = tiny_settings("dspark", num_steps=6)
    pieces = cut_answers(dataset.answers, range(12), PACK_LEN)
    held_out = arrange(pieces, PACK_LEN, 1)[:1]
    reporting = QuietReporting().reporting()
    trainer = trainer_of(settings, target, dataset)
    worse = trainer_of(tiny_settings("dspark", num_steps=6, learning_rate=1e30), target, dataset)
    fit(trainer, settings, pieces, [], folder, reporting)
    saved = folder.newest()
    assert saved is not None

    again = settings.model_copy(
        update={"fit": settings.fit.model_copy(update={"num_steps": 12, "learning_rate": 1e30})}
    )
    for packs in ([], held_out):
        with pytest.raises(ConfigError, match=r"diverged: the loss of step \d+ is (nan|inf)") as no:
            fit(worse, again, pieces, packs, folder, reporting)
        assert "--learning-rate than 1e+30" in str(no.value.hint)
        newest = folder.newest()
        assert newest is not None
        assert newest[0] == saved[0]


def test_a_start_that_is_no_number_is_refused(
    target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    settings = tiny_settings("dspark", num_steps=1)
    trainer = trainer_of(settings, target, dataset)
    begin(tmp_path / "run", settings, target, dataset)
    run(trainer, settings, dataset, tmp_path / "run")
    saved = RunFolder(tmp_path / "run").newest()
    assert saved is not None
    progress, tensors = saved
    tensors["parameter/fc.weight"][0, 0] = float("nan")
    RunFolder(tmp_path / "run").save(progress, tensors)
    with pytest.raises(ConfigError, match=r"not finite, first in fc\.weight"):
        start_with(tmp_path / "run", settings, target, dataset)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_settings_are_finite(value: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        tiny_settings("dspark", learning_rate=value)


def test_more_processes_than_packs_are_refused() -> None:
    workers = ThreadWorkers(0, [[], []], threading.Barrier(2))
    require_work_for_all(workers, 2)
    with pytest.raises(ConfigError, match="2 processes share steps of 1 packs"):
        require_work_for_all(workers, 1)


def test_a_process_whose_peer_has_ended_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: Tensor) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", closed)
    with pytest.raises(PeerError, match="another process of this training has ended"):
        DistributedWorkers().add_up([torch.zeros(1)])


class ThreadWorkers:
    """Two trainers in two threads of this process that wait for each other."""

    count = 2

    def __init__(self, rank: int, others: list[list[Tensor]], barrier: threading.Barrier) -> None:
        self.rank = rank
        self._all = others
        self._barrier = barrier

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        mine = list(tensors)
        self._all[self.rank] = [tensor.clone() for tensor in mine]
        self._barrier.wait(timeout=60)
        for index, tensor in enumerate(mine):
            tensor.copy_(self._all[0][index] + self._all[1][index])
        self._barrier.wait(timeout=60)

    def close(self) -> None:
        pass


def test_two_workers_learn_what_one_does(target: TrainingTarget, dataset: Dataset) -> None:
    settings = tiny_settings("dspark", pass_packs=1)
    packs = arrange(cut_answers(dataset.answers, range(12), PACK_LEN), PACK_LEN, 1)[:4]
    alone = trainer_of(settings, target, dataset)
    tallies = [empty_tally(settings) for _ in range(3)]
    report = alone.step(0, packs, tallies[2])

    barrier = threading.Barrier(2)
    shared: list[list[Tensor]] = [[], []]
    pair = [
        trainer_of(settings, target, dataset, ThreadWorkers(rank, shared, barrier))
        for rank in range(2)
    ]
    losses: dict[int, float] = {}

    def work(rank: int) -> None:
        losses[rank] = pair[rank].step(0, packs, tallies[rank]).loss

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert losses[0] == losses[1] == pytest.approx(report.loss, rel=1e-5)
    for tally in tallies[:2]:
        assert tally.num_blocks == tallies[2].num_blocks > 0
        torch.testing.assert_close(tally.sampled, tallies[2].sampled)
        assert torch.equal(tally.greedy, tallies[2].greedy)
    moments = "momentum_buffer/layers.0.mlp.down_proj.weight"
    expected = alone.state()[moments]
    for trainer in pair:
        torch.testing.assert_close(trainer.state()[moments], expected, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(
    ("family", "size"),
    [
        *((family, "intermediate_size") for family in FAMILIES),
        *((family, "num_layers") for family in FAMILIES if family != "mtp"),  # which has one
    ],
)
def test_a_larger_net_starts_as_the_smaller_one(
    family: DraftFamily, size: str, target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    settings = tiny_settings(family)
    small = trainer_of(settings, target, dataset)
    begin(tmp_path / "run", settings, target, dataset)
    run(small, settings, dataset, tmp_path / "run")

    old_size = getattr(settings.net, size)
    larger = tiny_settings(family, {size: 2 * old_size})
    net = start_with(tmp_path / "run", larger, target, dataset).net
    grown = trainer_of(larger, target, dataset, net=net)

    packs = arrange(cut_answers(dataset.answers, dataset.indices("train"), PACK_LEN), PACK_LEN, 0)
    losses = [trainer.measure(packs, empty_tally(settings)) for trainer in (small, grown)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    before = {name: parameter.clone() for name, parameter in net.trained().items()}
    begin(tmp_path / "grown", larger, target, dataset)
    run(grown, larger, dataset, tmp_path / "grown")
    for name in ("mlp.down_proj", "mlp.gate_proj"):
        last = f"layers.{larger.net.num_layers - 1}.{name}.weight"
        assert (net.parameters[last] != before[last]).all()
    with pytest.raises(ConfigError, match=size):
        start_with(tmp_path / "grown", settings, target, dataset)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_net_that_knows_more_tokens_starts_with_what_it_knew(
    family: DraftFamily, target: TrainingTarget, dataset: Dataset, tmp_path: Path
) -> None:
    settings = tiny_settings(family)
    begin(tmp_path / "run", settings, target, dataset)
    small = trainer_of(settings, target, dataset)
    run(small, settings, dataset, tmp_path / "run")
    size = settings.net.draft_vocab_size
    larger = tiny_settings(family, {"draft_vocab_size": size + 20})

    start = start_with(tmp_path / "run", larger, target, dataset)

    old, new = small.net.known_ids(), start.net.known_ids()
    assert torch.equal(new, start.fixed.token_ids)
    assert len(new) == size + 20
    assert (new.diff() > 0).all()
    places = torch.isin(new, old)
    assert int(places.sum()) == size
    for name, before in small.net.trained().items():
        now = start.net.parameters[name]
        is_of_tokens = name in family_for(start.net.hparams).of_tokens
        assert torch.equal(now[places] if is_of_tokens else now, before)
    rows = start.net.parameters["lm_head.weight"].detach()
    of_target = start.net.ends.vocabulary[new].float()
    ratio = float(rows[~places].norm() / of_target[~places].norm())
    of_known = of_target[places]
    expected = float((of_known * rows[places]).sum() / of_known.square().sum())
    assert ratio == pytest.approx(expected, rel=1e-3)
    with pytest.raises(ConfigError, match="draft_vocab_size"):
        start_with(
            tmp_path / "run", tiny_settings(family, {"draft_vocab_size": 5}), target, dataset
        )


def test_every_epoch_reads_each_answer_once_in_another_order() -> None:
    pieces = cut_answers(counting_answers(20), range(20), PACK_LEN)
    settings = tiny_settings("dspark", step_packs=1).fit
    num_packs = len(arrange(pieces, PACK_LEN, 0))
    stream = PackStream(pieces, settings)
    seen = [
        piece.index for step in range(num_packs) for pack in stream.of_step(step) for piece in pack
    ]
    assert len(seen) >= 19
    assert len(set(seen[:15])) == 15
    assert stream.of_step(0) == PackStream(pieces, settings).of_step(0)


def test_the_learning_rate_rises_then_falls() -> None:
    settings = tiny_settings("dspark", num_steps=100, warmup_share=0.1, final_share=0.1).fit
    rates = [learning_rate(settings, step) for step in range(100)]
    assert rates.index(max(rates)) in (9, 10)
    assert max(rates) == settings.learning_rate
    assert rates[-1] == pytest.approx(0.1 * settings.learning_rate, rel=0.05)


def test_a_run_becomes_a_picture(target: TrainingTarget, dataset: Dataset, tmp_path: Path) -> None:
    settings = tiny_settings("dspark", num_steps=2)
    progress = run(trainer_of(settings, target, dataset), settings, dataset, tmp_path / "run")
    write_plot(progress.history, "a title", tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes()[:4] == b"\x89PNG"
