"""A training run from its first step, or the one where it was interrupted, to its last."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.clock import Clock
from slipstream.errors import ConfigError
from slipstream.training.acceptance import AcceptanceTally
from slipstream.training.packing import Piece
from slipstream.training.run_folder import Progress, RunFolder, Score
from slipstream.training.schedule import PackStream, learning_rate
from slipstream.training.settings import RunSettings
from slipstream.training.trainer import Packs, Trainer


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often, in steps, something is done besides training; no effect on the weights.

    Attributes:
        score: A line of history is written.
        held_out: Held-out answers are measured for it.
        checkpoint: The run is saved. All three: multiples of `score`.
    """

    score: int = 10
    held_out: int = 100
    checkpoint: int = 100


@dataclass(frozen=True, slots=True)
class Reporting:
    """Whom to tell what, and when. Times are seconds.

    Attributes:
        on_step: Steps done, tokens per second of this sitting, seconds left.
        on_score: A line of history, and all of them so far.
    """

    intervals: Intervals
    on_step: Callable[[int, float, float], None]
    on_score: Callable[[Score, Sequence[Score]], None]
    clock: Clock


def fit(
    trainer: Trainer,
    settings: RunSettings,
    pieces: Sequence[Piece],
    held_out: Packs,
    folder: RunFolder,
    reporting: Reporting,
) -> Progress:
    """Train to the end.

    Args:
        pieces: What is trained on.
        held_out: Packs that are only measured.
        folder: Where checkpoints are; of the processes of a shared training the first saves.
    Raises:
        ConfigError: There is nothing to train on, or the loss has become infinite.
        WeightsError: The last checkpoint is damaged.
    """
    if not pieces:
        raise ConfigError(
            "there is no answer to train on: all are too short, or held out",
            hint="add answers with `slipstream train data`",
        )
    progress, intervals = Progress(), reporting.intervals
    saved = folder.newest()
    if saved is not None:
        progress, tensors = saved
        trainer.restore(tensors, progress.step)
    stream = PackStream(pieces, settings.fit)
    sitting = _Sitting(reporting.clock, settings.fit.num_steps, progress)
    tally, losses = AcceptanceTally.empty(settings.net.max_draft_len), []
    for step in range(progress.step, settings.fit.num_steps):
        report = trainer.step(step, stream.of_step(step), tally)
        _require_finite(report.loss, settings, step)
        losses.append(report.loss)
        progress = sitting.after_step(progress, report.num_tokens)
        reporting.on_step(*sitting.state(progress))
        is_last = progress.step == settings.fit.num_steps
        if progress.step % intervals.score == 0 or is_last:
            is_measured = progress.step % intervals.held_out == 0 or is_last
            packs = held_out if is_measured else ()
            score = Score(
                step=progress.step,
                learning_rate=learning_rate(settings.fit, step),
                loss=sum(losses) / len(losses),
                sampled_length=tally.sampled_length(),
                greedy_length=tally.greedy_length(),
                **(_measured(trainer, settings, packs, step) if packs else {}),
            )
            progress = progress.model_copy(update={"history": (*progress.history, score)})
            reporting.on_score(score, progress.history)
            tally, losses = AcceptanceTally.empty(settings.net.max_draft_len), []
        is_due = progress.step % intervals.checkpoint == 0 or is_last
        if is_due and trainer.saves:
            folder.save(progress, trainer.state())
    return progress


def _require_finite(loss: float, settings: RunSettings, step: int) -> None:
    """Stop before what is no number is saved as a checkpoint."""
    if not math.isfinite(loss):
        raise ConfigError(
            f"the training has diverged: the loss of step {step + 1} is {loss}",
            hint=f"give a lower --learning-rate than {settings.fit.learning_rate:g}, and another "
            "--out with it",
        )


def _measured(
    trainer: Trainer, settings: RunSettings, held_out: Packs, step: int
) -> dict[str, float]:
    tally = AcceptanceTally.empty(settings.net.max_draft_len)
    loss = trainer.measure(held_out, tally)
    _require_finite(loss, settings, step)
    return {
        "held_out_loss": loss,
        "held_out_sampled": tally.sampled_length(),
        "held_out_greedy": tally.greedy_length(),
    }


class _Sitting:
    """Time and speed since this process began."""

    def __init__(self, clock: Clock, num_steps: int, progress: Progress) -> None:
        self._clock = clock
        self._num_steps = num_steps
        self._first = progress
        self._started_s = clock.now()

    def after_step(self, progress: Progress, num_tokens: int) -> Progress:
        return progress.model_copy(
            update={
                "step": progress.step + 1,
                "num_tokens": progress.num_tokens + num_tokens,
                "seconds": self._first.seconds + self._clock.now() - self._started_s,
            }
        )

    def state(self, progress: Progress) -> tuple[int, float, float]:
        seconds = max(self._clock.now() - self._started_s, 1e-9)
        num_done = progress.step - self._first.step
        left = (self._num_steps - progress.step) * seconds / num_done
        return progress.step, (progress.num_tokens - self._first.num_tokens) / seconds, left
