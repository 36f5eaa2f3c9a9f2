"""A run of `slipstream train fit`: settings, progress on the terminal, files at the end."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from slipstream.cli.training import choose_taps, provenance_of
from slipstream.clock import SystemClock
from slipstream.errors import ConfigError
from slipstream.training.dataset import Dataset, Split, open_dataset
from slipstream.training.draft_vocab import select_draft_tokens, unused_token
from slipstream.training.families.family import AnyFamily
from slipstream.training.families.table import FAMILIES
from slipstream.training.fit import Intervals, Reporting, fit
from slipstream.training.nets import TrainedNet
from slipstream.training.packing import Piece, arrange, cut_answers
from slipstream.training.plot import write_plot
from slipstream.training.publish import export_run, tell_story
from slipstream.training.run_folder import PROVENANCE_FILE, RunFolder, RunRecord, Score, write_json
from slipstream.training.session import (
    TrainingTarget,
    open_source,
    restore_run,
    restore_start,
    start_net,
    write_fixed,
)
from slipstream.training.settings import FitSettings, LossSettings, NetSettings, RunSettings
from slipstream.training.sources import FeatureSource
from slipstream.training.start import FixedParts, Lessons
from slipstream.training.tap_scales import NUM_MEASURED, tap_scales_of, usual_taps
from slipstream.training.trainer import Trainer
from slipstream.training.workers import DistributedWorkers, SingleWorker, Workers

DRAFT_FOLDER = "draft"
PLOT_FILE = "training.png"
_SCORE_EVERY = 10
_RATES = {"muon": 8e-3, "adamw": 1e-3}


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Folders of a run.

    Attributes:
        data: Answers.
        out: What is made.
        cache: Features; None asks the target for them.
        start: Another run, whose weights this one starts with.
    """

    data: Path
    out: Path
    cache: Path | None
    start: Path | None = None


@dataclass(frozen=True, slots=True)
class NetOptions:
    """Flags that become `NetSettings`; None is not given."""

    family: str
    taps: str | None
    mask_token: int | None
    train_head: bool | None
    num_layers: int | None
    draft_len: int | None
    draft_vocab: int
    intermediate: int | None
    markov_rank: int


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The flags of the command; None is not given.

    Attributes:
        losses: `PART=SCALE`, which differ from the family's.
        course: Fields of `FitSettings` that are flags of their own.
    """

    files: RunFiles
    net: NetOptions
    epochs: float
    num_steps: int | None
    learning_rate: float | None
    losses: tuple[str, ...]
    course: Mapping[str, Any]  # Any: values of different types
    checkpoint_every: int
    num_held_out: int


def run_fit(target: TrainingTarget, options: FitOptions) -> None:
    """Train, and write the drafter, its provenance and a picture of the run."""
    workers = _workers()
    console = Console(quiet=workers.rank != 0)
    dataset = open_dataset(options.files.data, target.identity)
    settings = choose_settings(target, dataset, options)
    pieces = _pieces(dataset, "train", settings.fit)
    folder = RunFolder(options.files.out)
    answers = dataset.of_side("train")
    start = options.files.start and restore_start(options.files.start, target, settings, answers)
    record = RunRecord(
        target=target.identity,
        dataset_sha256=dataset.manifest.sha256,
        settings=settings,
        start_sha256=start.weights_sha256 if start else None,
    )
    if workers.rank == 0:
        folder.begin(record)
    workers.add_up([torch.zeros(1)])  # the others wait until the folder is there
    source = open_source(target, dataset, settings.net.tap_layer_ids, options.files.cache)
    if start:
        fixed, net = start.fixed, start.net
    else:
        fixed, net = _new_net(target, dataset, source, settings)
    if workers.rank == 0:
        write_fixed(folder, fixed)
    objective = net.objective(settings)
    trainer = Trainer(net, objective, settings.fit, source, dataset.answers, workers)
    provenance = provenance_of([])
    held_out = arrange(_pieces(dataset, "validation", settings.fit), settings.fit.pack_len, 0)
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


def _new_net(
    target: TrainingTarget, dataset: Dataset, source: FeatureSource, settings: RunSettings
) -> tuple[FixedParts, TrainedNet]:
    """What is measured before a training, and a net that starts from it."""
    answers, eos = dataset.of_side("train"), target.loaded.tokenizer.eos_token_ids
    size = settings.net.draft_vocab_size
    token_ids = select_draft_tokens(answers, target.identity.vocab_size, size, eos)
    taps = usual_taps(source.features(dataset.indices("train")[:NUM_MEASURED]))
    fixed = FixedParts(token_ids, tap_scales_of(taps))
    return fixed, start_net(settings, target, fixed, Lessons(answers, taps))


def choose_settings(target: TrainingTarget, dataset: Dataset, options: FitOptions) -> RunSettings:
    """Settings of a run, with defaults that depend on target and data.

    Raises:
        ConfigError: A flag's value cannot be used.
    """
    named = options.net.family
    family = next((item for item in FAMILIES.values() if item.name == named), None)
    if family is None:
        raise ConfigError(
            f'--family must be one of {", ".join(FAMILIES)}, got "{named}"',
            hint="docs/guides/training.md says which is for what; dspark is the default",
        )
    try:
        net = _choose_net(family, target, dataset, options)
        rate = options.learning_rate or _RATES.get(options.course["optimiser"], 1.0)
        fields = {"num_steps": options.num_steps or 1, "learning_rate": rate, **options.course}
        course = FitSettings.model_validate(fields)
        losses = LossSettings.model_validate(
            family.losses.model_dump() | dict(map(_part, options.losses))
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(
            f"{first['loc'][0]} cannot be {first['input']}: {first['msg']}",
            hint="see `slipstream train fit --help`",
        ) from error
    if options.num_steps is None:
        packs = arrange(_pieces(dataset, "train", course), course.pack_len, 0)
        num_steps = max(1, math.ceil(options.epochs * len(packs) / course.step_packs))
        course = course.model_copy(update={"num_steps": num_steps})
    return RunSettings(net=net, losses=losses, fit=course)


def _part(text: str) -> tuple[str, str]:
    name, equals, scale = text.partition("=")
    if not equals:
        raise ConfigError(f'--loss takes PART=SCALE, got "{text}"', hint="such as --loss label=1")
    return name, scale


def _choose_net(
    family: AnyFamily, target: TrainingTarget, dataset: Dataset, options: FitOptions
) -> NetSettings:
    flags, hparams = options.net, target.loaded.model.hparams
    mask = flags.mask_token
    if mask is None:
        mask = unused_token(dataset.answers, hparams.vocab_size)
    usual_layers = family.tap_layer_ids(hparams.num_layers)
    return NetSettings.model_validate(
        {
            "family": family.name,
            "num_layers": flags.num_layers or family.num_layers,
            "tap_layer_ids": choose_taps(flags.taps, options.files.cache, usual_layers),
            "max_draft_len": flags.draft_len or family.max_draft_len,
            "draft_vocab_size": min(flags.draft_vocab, hparams.vocab_size),
            "intermediate_size": flags.intermediate or hparams.intermediate_size,
            "mask_token_id": mask,
            "trains_head": flags.train_head is not False,
            "markov_rank": flags.markov_rank,
        }
    )


def _pieces(dataset: Dataset, side: Split, settings: FitSettings) -> list[Piece]:
    return cut_answers(dataset.answers, dataset.indices(side), settings.pack_len)


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
        task = bar.add_task("training", total=num_steps, speed="")
        yield Reporting(
            _intervals(options.checkpoint_every),
            _on_step(bar, task),
            _on_score(options.files.out / PLOT_FILE, title, console),
            SystemClock(),
        )


def _on_step(bar: Progress, task: TaskID) -> Callable[[int, float, float], None]:
    def on_step(step: int, tokens_per_s: float, left_s: float) -> None:
        minutes, seconds = divmod(round(left_s), 60)
        left = f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left"
        speed = f"{tokens_per_s:,.0f} answer tokens/s, {left}"
        bar.update(task, completed=step, speed=speed)

    return on_step


def _on_score(plot: Path, title: str, console: Console) -> Callable[[Score, Sequence[Score]], None]:
    def on_score(score: Score, history: Sequence[Score]) -> None:
        text = (
            f"step {score.step}  loss {score.loss:.3f}  acceptance {score.sampled_length:.2f} "
            f"(along answers {score.greedy_length:.2f})"
        )
        if score.held_out_loss is not None:
            text += (
                f"  held out: loss {score.held_out_loss:.3f}  acceptance "
                f"{score.held_out_sampled:.2f} ({score.held_out_greedy:.2f})"
            )
            write_plot(history, title, plot)
        console.print(text, highlight=False)

    return on_score
