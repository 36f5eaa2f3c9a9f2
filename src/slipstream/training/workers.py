"""Several processes that train one net, each on its part of a step's packs.

Every process adds up gradients of its packs; the sums over all processes are the same as one
process would have, up to rounding. Started by torchrun, which sets the environment that
`torch.distributed` reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
import torch.distributed
from torch import Tensor

from slipstream.errors import ConfigError, SlipstreamError


class Workers(Protocol):
    """The processes that share a training."""

    rank: int
    count: int

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""

    def close(self) -> None:
        """Part from the others, behind the last sum."""


class SingleWorker:
    """See `Workers`: this process alone."""

    rank = 0
    count = 1

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """See `Workers`: nothing to add."""

    def close(self) -> None:
        """See `Workers`: nothing to do."""


def require_work_for_all(workers: Workers, step_packs: int) -> None:
    """Refuse more processes than a step has packs.

    Raises:
        ConfigError: Says how many of each there are.
    """
    if workers.count > step_packs:
        raise ConfigError(
            f"{workers.count} processes share steps of {step_packs} packs, so that some have none",
            hint=f"start at most {step_packs} processes, or give more --step-packs",
        )


class PeerError(SlipstreamError):
    """A process that shares a training is gone."""


class DistributedWorkers:
    """See `Workers`: a process group of torch that has been set up."""

    def __init__(self) -> None:
        self.rank = torch.distributed.get_rank()
        self.count = torch.distributed.get_world_size()

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """See `Workers`."""
        try:
            for tensor in tensors:
                torch.distributed.all_reduce(tensor)
        except RuntimeError as error:  # nothing more special is raised
            raise PeerError(
                "another process of this training has ended",
                hint="its own message says why; the same command goes on where it was",
            ) from error

    def close(self) -> None:
        """See `Workers`."""
        torch.distributed.destroy_process_group()
