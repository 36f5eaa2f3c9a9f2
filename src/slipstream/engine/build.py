"""From a configuration to a running engine: load, plan memory, measure, connect."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import torch

from slipstream.clock import Clock
from slipstream.config.control import CostControl
from slipstream.config.schema import Config
from slipstream.config.speculation import DraftModelConfig
from slipstream.config.verification import RejectionConfig
from slipstream.engine.admission import RequestChecker
from slipstream.engine.engine import Engine
from slipstream.engine.loading import (
    LoadedModel,
    load_draft_model,
    load_target,
)
from slipstream.engine.messages import EngineInfo
from slipstream.engine.net_parts import AnyNet, load_nets, net_parts
from slipstream.engine.numerics import fingerprint
from slipstream.engine.observer import EngineObserver
from slipstream.engine.queue import RequestQueue
from slipstream.engine.recurrence import Recurrence
from slipstream.engine.scheduler import Scheduler, SchedulerLimits
from slipstream.engine.shipped import choose_shipped
from slipstream.engine.step import Stages
from slipstream.engine.taps import TapBacklog
from slipstream.engine.token_logprobs import LogprobReporter
from slipstream.execution.cores import choose_num_threads, read_cores
from slipstream.execution.profile import profile_steps, workspace_bytes
from slipstream.execution.runner import Runner
from slipstream.kv.budget import MemoryPlan, plan_memory
from slipstream.kv.cache import KvCache
from slipstream.models.identity import identify
from slipstream.observability.engine_metrics import EngineMetrics
from slipstream.speculation.build import build_drafters
from slipstream.speculation.control import DraftLimit, FixedController, LengthController
from slipstream.speculation.cost import StepCost
from slipstream.speculation.cost_control import CostController
from slipstream.speculation.drafter import Drafter
from slipstream.speculation.drafters.draft_model.parts import DraftModelParts
from slipstream.speculation.propose import Proposer
from slipstream.speculation.verification import (
    ExactVerification,
    RejectionVerification,
    Verification,
)

log = logging.getLogger("slipstream.engine")


def build_engine(config: Config, clock: Clock, more_drafters: Sequence[Drafter] = ()) -> Engine:
    """Load all weights, split the memory, profile the step and connect the parts.

    Args:
        more_drafters: Propose besides those of the configuration, behind them.
    Raises:
        SlipstreamError: Something does not fit; nothing keeps running.
    """
    cores = read_cores()
    torch.set_num_threads(choose_num_threads(config.engine.num_threads, cores))
    log.info("computing with %d threads; there are %s", torch.get_num_threads(), cores)
    log.info("loading %s", config.model.public_name)
    target = load_target(config.model)
    config = _with_shipped(config, target)
    drafts = {
        item.name: load_draft_model(item, config.model, target)
        for item in config.speculation.drafters
        if isinstance(item, DraftModelConfig)
    }
    nets = load_nets(config, target)
    has_drafters = bool(config.speculation.drafters or more_drafters)
    recurrence = Recurrence(config, target.model.hparams, has_drafters=has_drafters)
    plan = _plan_memory(config, target, list(drafts.values()), list(nets.values()), recurrence)
    kv = recurrence.cache(plan)
    log.info("proving that rows are exact on this machine")
    metrics = EngineMetrics(clock)
    runner = _runner(target, kv, config.memory.kv_dtype)
    recurrence.equip(runner.storage, plan)
    recurrence.watch(kv.states, metrics)
    _watch_kernels(metrics, "target", runner)
    sampler = target.sampler()
    draft_parts = _draft_parts(config, drafts, plan, target, metrics)
    drafters = build_drafters(
        config.speculation,
        vocab_size=target.vocab_size,
        eos_token_ids=target.tokenizer.eos_token_ids,
        draft_models=draft_parts,
        draft_nets=net_parts(config, nets, kv, target),
        metrics=metrics,
        clock=clock,
    ) + list(more_drafters)
    controller = _controller(config, runner, clock)
    queue = RequestQueue(config.scheduler.max_queue_len, config.scheduler.starvation_s)
    proposer = Proposer(drafters, controller, clock, chains_only=recurrence.chains_only)
    taps = TapBacklog(proposer.absorb)
    stages = Stages(
        scheduler=Scheduler(_limits(config), kv, queue, taps.close),
        proposer=proposer,
        taps=taps,
        runner=runner,
        sampler=sampler,
        verification=_verification(config),
        logprobs=LogprobReporter(sampler, target.tokenizer),
        bounds=DraftLimit(config.speculation.max_draft_len, config.speculation.max_draft_nodes),
        clock=clock,
    )
    info = _info(config, target, runner, drafters, plan)
    return Engine(
        stages,
        {"target": kv} | {name: parts.kv for name, parts in draft_parts.items()},
        queue,
        tokenizer=target.tokenizer,
        checker=_checker(config, info),
        observer=EngineObserver(metrics, drafters, _memory(plan), config.memory.warn_at),
        info=info,
    )


def _with_shipped(config: Config, target: LoadedModel) -> Config:
    identity = identify(target.name, target.model)
    drafters = choose_shipped(config.speculation.drafters, identity, target.bits_per_weight)
    speculation = config.speculation.model_copy(update={"drafters": drafters})
    return config.model_copy(update={"speculation": speculation})


def _limits(config: Config) -> SchedulerLimits:
    scheduler = config.scheduler
    return SchedulerLimits(
        scheduler.max_num_requests, scheduler.max_step_tokens, config.memory.high_at
    )


def _checker(config: Config, info: EngineInfo) -> RequestChecker:
    return RequestChecker(
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
        drafters=info.drafters,
        queue_timeout_s=config.scheduler.queue_timeout_s,
        request_timeout_s=config.scheduler.request_timeout_s,
    )


def _plan_memory(
    config: Config,
    target: LoadedModel,
    drafts: Sequence[LoadedModel],
    nets: Sequence[AnyNet],
    recurrence: Recurrence,
) -> MemoryPlan:
    memory = config.memory
    net_dtype = target.kv_dtype(memory.draft_kv_dtype)
    return plan_memory(
        total_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        utilization=memory.utilization,
        weight_bytes=target.model.weight_bytes,
        draft_weight_bytes=sum(item.model.weight_bytes for item in drafts)
        + sum(net.weight_bytes for net in nets),
        workspace_bytes=_workspace_bytes(config, [target, *drafts]),
        kv_bytes_per_token=target.kv_bytes_per_token(memory.kv_dtype),
        draft_kv_bytes_per_token=sum(
            item.kv_bytes_per_token(memory.draft_kv_dtype) for item in drafts
        )
        + sum(net.kv_bytes_per_token(net_dtype) for net in nets),
        page_size=memory.page_size,
        max_model_len=target.max_model_len,
        kv_bytes=memory.kv_bytes,
        states=recurrence.needs(),
    )


def _workspace_bytes(config: Config, models: Sequence[LoadedModel]) -> int:
    """Of the widest passes: every row of a step may want its logits."""
    max_rows = config.scheduler.max_step_tokens
    return sum(workspace_bytes(item.model.hparams, max_rows, max_rows) for item in models)


def _runner(loaded: LoadedModel, kv: KvCache, kv_dtype: str) -> Runner:
    shape = loaded.model.hparams.kv_shape
    storage = shape.storage(kv.num_slots, loaded.kv_dtype(kv_dtype))
    return Runner(loaded.model, storage)


def _watch_kernels(metrics: EngineMetrics, name: str, runner: Runner) -> None:
    """Count and name the kernels of one model."""
    usage = runner.usage
    metrics.read_kernels(name, usage.products, usage.attention_calls)
    log.info("kernels of %s: %s", name, usage.description())


def _draft_parts(
    config: Config,
    drafts: dict[str, LoadedModel],
    plan: MemoryPlan,
    target: LoadedModel,
    metrics: EngineMetrics,
) -> dict[str, DraftModelParts]:
    parts: dict[str, DraftModelParts] = {}
    for name, loaded in drafts.items():
        kv = KvCache(plan.num_draft_pages, plan.page_size, prefix_cache=config.memory.prefix_cache)
        runner = _runner(loaded, kv, config.memory.draft_kv_dtype)
        _watch_kernels(metrics, name, runner)
        parts[name] = DraftModelParts(
            runner=runner,
            kv=kv,
            sampler=target.sampler(),
            max_len=loaded.max_model_len,
            kv_bytes_per_token=loaded.kv_bytes_per_token(config.memory.draft_kv_dtype),
            weight_bytes=loaded.model.weight_bytes,
        )
    return parts


def _controller(config: Config, runner: Runner, clock: Clock) -> LengthController:
    control = config.speculation.controller
    if not isinstance(control, CostControl) or not config.speculation.drafters:
        return FixedController()
    log.info("measuring what a step costs by its rows")
    rows = [1, 2, 3, 4, 8, 16, 32, 128]  # between the last two, time grows with rows
    most = config.scheduler.max_step_tokens
    profile = profile_steps(runner, [count for count in rows if count <= most], clock)
    return CostController(
        StepCost(profile),
        decay=control.decay,
        probe_interval=control.probe_interval,
        min_gain=control.min_gain,
        stops_at_loss=isinstance(config.speculation.verification, RejectionConfig),
    )


def _verification(config: Config) -> Verification:
    chosen = config.speculation.verification
    if not isinstance(chosen, RejectionConfig):
        return ExactVerification()
    log.warning(
        "speculation.verification is rejection: answers are distributed as the target's, but a "
        "seed gives other tokens than without drafts; requests with a temperature are drafted as "
        "one chain, so trees and merged drafts (num_children, suffix.tree) serve greedy ones only"
    )
    return RejectionVerification(chosen.rule)


def _info(
    config: Config,
    target: LoadedModel,
    runner: Runner,
    drafters: Sequence[Drafter],
    plan: MemoryPlan,
) -> EngineInfo:
    return EngineInfo(
        model=target.name,
        vocab_size=target.vocab_size,
        max_model_len=target.max_model_len,
        fingerprint=_fingerprint(config, runner),
        drafters=tuple(drafter.name for drafter in drafters),
        eos_token_ids=tuple(target.tokenizer.eos_token_ids),
        kv_tokens=plan.num_tokens,
        weight_bytes=plan.weight_bytes,
        max_queue_len=config.scheduler.max_queue_len,
        details={
            "numerics": runner.numerics(),
            "max_num_requests": config.scheduler.max_num_requests,
            "verification": config.speculation.verification.kind,
        },
    )


def _fingerprint(config: Config, runner: Runner) -> str:
    """Answers that drafts may have changed are told apart from those that they cannot change."""
    verification = config.speculation.verification
    numerics: dict[str, object] = dict(runner.numerics())
    if verification.kind != "exact" and config.speculation.drafters:
        numerics["verification"] = verification.model_dump()
    return fingerprint(numerics)


def _memory(plan: MemoryPlan) -> dict[str, int]:
    return {
        "weights": plan.weight_bytes,
        "draft_weights": plan.draft_weight_bytes,
        "workspace": plan.workspace_bytes,
        "kv": plan.kv_bytes,
        "draft_kv": plan.draft_kv_bytes,
        "states": plan.state_bytes,
    }
