"""One step of training, and measuring on answers that are held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.training.acceptance import AcceptanceTally
from slipstream.training.answers import Answer
from slipstream.training.nets import TrainedNet
from slipstream.training.objective import Batch, Objective, Outcome
from slipstream.training.optimiser import Optimiser
from slipstream.training.packing import Piece, build_packs
from slipstream.training.schedule import derived_seed, learning_rate
from slipstream.training.settings import FitSettings
from slipstream.training.sources import FeatureSource
from slipstream.training.workers import Workers

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_SMALLEST_WEIGHT = 1e-6

Packs = Sequence[Sequence[Piece]]


@dataclass(frozen=True, slots=True)
class StepReport:
    """Attributes:
    loss: Mean of the step's rows.
    num_tokens: Answer tokens in its packs.
    """

    loss: float
    num_tokens: int


class Trainer:
    """Optimises a net.

    Args:
        objective: Its loss.
        source, answers: What is trained on.
        workers: Who else trains it.
    """

    def __init__(
        self,
        net: TrainedNet,
        objective: Objective,
        settings: FitSettings,
        source: FeatureSource,
        answers: Sequence[Answer],
        workers: Workers,
    ) -> None:
        self.net = net
        self._objective = objective
        self._settings = settings
        self._source = source
        self._answers = answers
        self._workers = workers
        self._parameters = net.trained()
        self._optimiser = Optimiser(self._parameters, settings)

    @property
    def saves(self) -> bool:
        """Whether this process, of those that train the net, writes files."""
        return self._workers.rank == 0

    def step(self, step: int, packs: Packs, tally: AcceptanceTally) -> StepReport:
        """Learn from the packs of step `step`.

        Args:
            tally: Acceptance in the packs of all processes is added to it.
        """
        seeds = [derived_seed(self._settings.seed, step, number) for number in range(len(packs))]
        own = slice(self._workers.rank, None, self._workers.count)
        batches = self._batches(packs[own], seeds[own])
        weight = self._summed(sum(batch.total_weight for batch in batches))
        total = max(weight, _SMALLEST_WEIGHT)
        loss, counted = 0.0, AcceptanceTally.empty(len(tally.sampled))
        for batch in batches:
            net = self.net.copy_in(_DTYPES[self._settings.dtype])
            outcome = self._objective.measure(net, batch, total)
            outcome.loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            loss += float(outcome.loss.detach())
            counted.add(outcome.results)
        counted.num_blocks = round(self._summed(counted.num_blocks))
        self._workers.add_up([counted.sampled, counted.greedy])
        tally.join(counted)
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        self._workers.add_up(gradients)
        torch.nn.utils.clip_grad_norm_(self._parameters.values(), self._settings.clip_norm)
        self._optimiser.step(learning_rate(self._settings, step))
        return StepReport(self._summed(loss), sum(self._num_response(pack) for pack in packs))

    def measure(self, packs: Packs, tally: AcceptanceTally) -> float:
        """Mean loss of packs that are not trained on; adds their acceptance to `tally`."""
        loss, weight = 0.0, 0.0
        with torch.no_grad():
            net = self.net.copy_in(_DTYPES[self._settings.dtype])
            for batch in self._batches(packs, range(len(packs))):
                outcome: Outcome = self._objective.measure(net, batch, 1.0)
                loss += float(outcome.loss)
                weight += batch.total_weight
                tally.add(outcome.results)
        return loss / max(weight, _SMALLEST_WEIGHT)

    def state(self) -> dict[str, Tensor]:
        """All that a run needs to go on, by name."""
        parameters = {f"parameter/{name}": p.detach() for name, p in self._parameters.items()}
        return parameters | self._optimiser.state()

    def restore(self, tensors: dict[str, Tensor], num_steps: int) -> None:
        """Go on from a `state` that was taken after `num_steps` steps."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(tensors[f"parameter/{name}"])
        self._optimiser.restore(tensors, num_steps)

    def _batches(self, packs: Packs, seeds: Sequence[int]) -> list[Batch]:
        batches: list[Batch] = []
        for start in range(0, len(packs), self._settings.pass_packs):
            some = packs[start : start + self._settings.pass_packs]
            of_some = seeds[start : start + self._settings.pass_packs]
            features = [self._source.features([piece.index for piece in pack]) for pack in some]
            built = build_packs(some, self._answers, features, self._settings.pack_len)
            batches.append(self._objective.prepare(built, of_some))
        return batches

    def _summed(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64)
        self._workers.add_up([total])
        return float(total)

    def _num_response(self, pack: Sequence[Piece]) -> int:
        return sum(piece.stop - max(piece.start, piece.prompt_len) for piece in pack)
