"""A run of `slipstream train fit`: settings, progress on the terminal, files at the end."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from slipstream.cli.train_settings import FitOptions, choose_settings, pieces_of
from slipstream.cli.training import provenance_of
from slipstream.clock import SystemClock
from slipstream.config.model import ModelConfig
from slipstream.models.drafts.origin import PROVENANCE_FILE
from slipstream.training.begin import begin_new, begin_with
from slipstream.training.dataset import open_dataset
from slipstream.training.fit import Intervals, Reporting, fit
from slipstream.training.given import open_given
from slipstream.training.packing import arrange
from slipstream.training.plot import write_plot
from slipstream.training.publish import export_run, tell_story
from slipstream.training.run_folder import (
    RunFolder,
    RunRecord,
    Score,
    write_json,
)
from slipstream.training.session import (
    TrainingTarget,
    open_source,
    restore_run,
    write_fixed,
    write_shape,
)
from slipstream.training.trainer import Trainer
from slipstream.training.workers import (
    DistributedWorkers,
    SingleWorker,
    Workers,
    require_work_for_all,
)
from slipstream.weights.layout import DRAFT_FOLDER

PLOT_FILE = "training.png"
_SCORE_EVERY = 10


def run_fit(target: TrainingTarget, model: ModelConfig, options: FitOptions) -> None:
    """Train, and write the drafter, its provenance and a picture of the run.

    Args:
        model: Of the target; a net to start from that must be fetched is kept where it is.
    """
    workers = _workers()
    console = Console(quiet=workers.rank != 0)
    dataset = open_dataset(options.files.data, target.identity)
    start = options.files.start
    given = open_given(start, target, model) if start else None
    settings = choose_settings(target, dataset, options, given)
    require_work_for_all(workers, settings.fit.step_packs)
    pieces = pieces_of(dataset, "train", settings.fit)
    folder = RunFolder(options.files.out)
    source = open_source(target, dataset, settings.net.tap_layer_ids, options.files.cache)
    begun = (
        begin_with(given, settings, target, dataset, source)
        if given
        else begin_new(settings, target, dataset, source)
    )
    record = RunRecord(
        target=target.identity,
        dataset_sha256=dataset.manifest.sha256,
        settings=settings,
        start_sha256=given.sha256 if given else None,
        start_from=given.name if given else None,
    )
    if workers.rank == 0:
        folder.begin(record)
    workers.add_up([torch.zeros(1)])  # the others wait until the folder is there
    net = begun.net
    if workers.rank == 0:
        write_fixed(folder, begun.fixed)
        write_shape(folder, net.hparams)
    objective = net.objective(settings)
    trainer = Trainer(net, objective, settings.fit, source, dataset.answers, workers)
    provenance = provenance_of([])
    held_out = arrange(pieces_of(dataset, "validation", settings.fit), settings.fit.pack_len, 0)
    title = f"{settings.net.family} for {target.identity.name}, {provenance['machine']['cpu']}"
    with _reporting(settings.fit.num_steps, options, title, console) as reporting:
        progress = fit(
            trainer,
            settings,
            pieces,
            held_out[: options.num_held_out],
            folder,
            reporting,
        )
    workers.close()
    if workers.rank != 0:
        return
    story = tell_story(record, progress, provenance)
    write_json(options.files.out / PROVENANCE_FILE, story)
    run = restore_run(options.files.out, target)
    export_run(run, target, options.files.out / DRAFT_FOLDER, "slipstream", "bfloat16", story)
    console.print(f"the drafter is in {options.files.out / DRAFT_FOLDER}")


def _intervals(checkpoint_every: int) -> Intervals:
    score = math.gcd(checkpoint_every, _SCORE_EVERY)
    return Intervals(score, held_out=checkpoint_every, checkpoint=checkpoint_every)


def _workers() -> Workers:
    """The processes that torchrun has started, or this one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return SingleWorker()
    torch.distributed.init_process_group("gloo")
    return DistributedWorkers()


@contextmanager
def _reporting(
    num_steps: int, options: FitOptions, title: str, console: Console
) -> Iterator[Reporting]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    shown = Console(stderr=True, quiet=console.quiet)
    with Progress(*columns, TextColumn("{task.fields[speed]}"), console=shown) as bar:
        bar.add_task("training", total=num_steps, speed="")
        lines = _Lines(bar, options.files.out / PLOT_FILE, title, console)
        intervals = _intervals(options.checkpoint_every)
        yield Reporting(intervals, lines.on_step, lines.on_score, SystemClock())


class _Lines:
    """What a training shows: a bar where someone looks on, a line a score everywhere, a plot."""

    def __init__(self, bar: Progress, plot: Path, title: str, console: Console) -> None:
        self._bar = bar
        self._plot = plot
        self._title = title
        self._console = console
        self._speed = ""

    def on_step(self, step: int, tokens_per_s: float, left_s: float) -> None:
        """See `Reporting`."""
        minutes, seconds = divmod(round(left_s), 60)
        left = f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left"
        self._speed = f"{tokens_per_s:,.0f} answer tokens/s, {left}"
        for task in self._bar.task_ids:
            self._bar.update(task, completed=step, speed=self._speed)

    def on_score(self, score: Score, history: Sequence[Score]) -> None:
        """See `Reporting`."""
        text = (
            f"step {score.step}  loss {score.loss:.3f}  acceptance {score.sampled_length:.2f} "
            f"(along answers {score.greedy_length:.2f})  {self._speed}"
        )
        if score.held_out_loss is not None:
            text += (
                f"  held out: loss {score.held_out_loss:.3f}  acceptance "
                f"{score.held_out_sampled:.2f} ({score.held_out_greedy:.2f})"
            )
            write_plot(history, self._title, self._plot)
        self._console.print(text, highlight=False, soft_wrap=True)
