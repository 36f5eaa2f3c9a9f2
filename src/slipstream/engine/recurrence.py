"""What a target with recurrent layers asks of the engine: states, and drafts without branches."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from slipstream.config.schema import Config
from slipstream.errors import ConfigError
from slipstream.kv.budget import MemoryPlan, StateNeeds
from slipstream.kv.cache import KvCache
from slipstream.kv.states import StatePool
from slipstream.kv.storage import KvStorage
from slipstream.models.hparams import Hparams
from slipstream.observability.engine_metrics import EngineMetrics

log = logging.getLogger("slipstream.engine")


class Recurrence:
    """The recurrent part of a target; of a target without such layers it asks for nothing.

    Args:
        has_drafters: Whether anything may be drafted.
    Raises:
        ConfigError: A drafter is to propose trees, which recurrent layers cannot verify.
    """

    def __init__(self, config: Config, hparams: Hparams, *, has_drafters: bool) -> None:
        self._config = config
        self._shape = hparams.state_shape
        self._max_drafts = config.speculation.max_draft_len if has_drafters else 0
        if self._shape is not None:
            _require_chains(config)

    @property
    def chains_only(self) -> bool:
        """Whether drafts must not branch."""
        return self._shape is not None

    def needs(self) -> StateNeeds | None:
        """Its share of the memory budget."""
        if self._shape is None:
            return None
        return StateNeeds(
            bytes_each=self._shape.bytes_per_state(self._max_drafts),
            max_requests=self._config.scheduler.max_num_requests,
            total_bytes=self._config.memory.state_bytes,
        )

    def cache(self, plan: MemoryPlan) -> KvCache:
        """The target's cache, with states where it has recurrent layers."""
        return KvCache(
            plan.num_pages,
            plan.page_size,
            prefix_cache=self._config.memory.prefix_cache,
            states=self._pool(plan),
        )

    def _pool(self, plan: MemoryPlan) -> StatePool | None:
        if not plan.num_states:
            return None
        most = self._config.scheduler.max_num_requests
        log.info(
            "%d recurrent states of %.2f MiB, one for each running request, others for snapshots",
            plan.num_states,
            plan.state_bytes / (plan.num_states + 1) / 2**20,
        )
        if plan.num_states < most:
            log.warning(
                "at most %d requests run at once, not scheduler.max_num_requests = %d: each needs "
                "a recurrent state; raise memory.state_bytes for more",
                plan.num_states,
                most,
            )
        if plan.num_states == 1 and self._config.memory.prefix_cache:
            log.warning(
                "a running request needs the only recurrent state, so no snapshot is taken and no "
                "prefix is reused; raise memory.state_bytes for that"
            )
        pages = -(-self._config.memory.snapshot_interval // plan.page_size)
        return StatePool(plan.num_states, pages * plan.page_size, self._max_drafts)

    def watch(self, pool: StatePool | None, metrics: EngineMetrics) -> None:
        """Let metrics tell what happens to states; None: there are none."""
        if pool is not None:
            metrics.read_states(pool.snapshot_counts, lambda: pool.row_counts)

    def equip(self, storage: KvStorage, plan: MemoryPlan) -> None:
        """Give the target's storage memory for states."""
        if self._shape is not None:
            storage.states = self._shape.storage(plan.num_states, self._max_drafts)


def _require_chains(config: Config) -> None:
    for drafter in config.speculation.drafters:
        settings: Mapping[str, object] = drafter.model_dump()
        if settings.get("tree"):
            setting = "tree: true"
        elif settings.get("num_children", 1) != 1:
            setting = f"num_children: {settings['num_children']}"
        else:
            continue
        raise ConfigError(
            f"drafter {drafter.name} is set to propose trees ({setting}), but the target has "
            "recurrent layers: their state holds one text, so rows that branch off cannot be "
            "verified in one pass",
            hint=f"let {drafter.name} draft chains (tree: false, num_children: 1)",
        )
