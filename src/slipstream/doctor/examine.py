"""The whole examination, from the machine to the acceptance of every drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from slipstream.config.control import FixedControl
from slipstream.config.mtp import MtpConfig
from slipstream.config.schema import Config
from slipstream.config.speculation import (
    SHIPPED_SOURCE,
    DrafterConfig,
    DraftNetConfig,
    ShippedConfig,
)
from slipstream.config.verification import ExactConfig
from slipstream.doctor.conventions import conventions_of, layers_read
from slipstream.doctor.diagnosis import Diagnosis, diagnose, judge
from slipstream.doctor.drafter_files import TargetFiles, check_drafter, check_origin
from slipstream.doctor.findings import Finding, is_healthy, wrong
from slipstream.doctor.machine import check_engine, check_files, check_threads
from slipstream.doctor.target import Case, ExaminedTarget, Message
from slipstream.engine.llm import LLM
from slipstream.engine.loading import draft_path, load_target
from slipstream.engine.shipped import choose_shipped
from slipstream.errors import SlipstreamError
from slipstream.models.drafts.load import load_draft
from slipstream.models.identity import identify
from slipstream.weights.open import open_checkpoint
from slipstream.weights.progress import SilentProgress
from slipstream.weights.sources import resolve_source

_DTYPES = {"float32": torch.float32}
_MAX_MASKS = 4
_SERVED_SHARE = 0.5  # of the accepted drafts that the net promises, at least, must be served
_PROMISING = 1.3

OnStage = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do besides looking at files.

    Attributes:
        prompts: Conversations whose answers are drafted for; none skips acceptance.
        max_tokens: Longest answer.
    """

    prompts: Sequence[Sequence[Message]]
    max_tokens: int


@dataclass(slots=True)
class Examination:
    """What was found, in order.

    Attributes:
        diagnoses: Drafter -> its teacher-forced acceptance.
        served: Drafter -> its mean acceptance length in the engine, alone.
    """

    findings: list[Finding] = field(default_factory=list)
    diagnoses: dict[str, Diagnosis] = field(default_factory=dict)
    served: dict[str, float] = field(default_factory=dict)


def examine(config: Config, plan: Plan, on_stage: OnStage) -> Examination:
    """Check everything; an error of one part never hides what the others have to say.

    Args:
        on_stage: Told what is being done.
    """
    found = Examination([check_threads(config)])
    on_stage("reading headers")
    try:
        path = resolve_source(config.model, progress=SilentProgress())
        target = TargetFiles.read(path, config.model.tokenizer)
    except SlipstreamError as error:
        found.findings.append(wrong("target files", error))
        return found
    found.findings += check_files(config, path)
    try:
        drafters = _with_shipped(config, found, on_stage)
    except SlipstreamError as error:
        found.findings.append(wrong("drafters", error))
        drafters = ()
    about = {item.name: check_drafter(item, config, target) for item in drafters}
    found.findings += [finding for findings in about.values() for finding in findings]
    usable = tuple(item for item in drafters if is_healthy(about[item.name]))
    _examine_engine(config, usable, plan, path, found, on_stage)
    return found


def _with_shipped(
    config: Config, found: Examination, on_stage: OnStage
) -> tuple[DrafterConfig, ...]:
    """The drafters, those that come with Slipstream as files; which they are, the weights tell."""
    configured = config.speculation.drafters
    asks = [
        item
        for item in configured
        if isinstance(item, ShippedConfig)
        or (isinstance(item, DraftNetConfig) and item.source == SHIPPED_SOURCE)
    ]
    if not asks:
        return configured
    on_stage(f"loading {config.model.public_name}")
    target = load_target(config.model)
    identity = identify(target.name, target.model)
    chosen = choose_shipped(configured, identity, target.bits_per_weight)
    for item in asks:
        if item.name not in {one.name for one in chosen}:
            message = (
                "no drafter comes with Slipstream for this target, or its weights are too narrow "
                "for one to pay (min_target_bits); it drafts nothing"
            )
            found.findings.append(Finding(f"{item.name}: files", "skipped", message))
    return chosen


def _examine_engine(
    config: Config,
    drafters: tuple[DrafterConfig, ...],
    plan: Plan,
    path: Path,
    found: Examination,
    on_stage: OnStage,
) -> None:
    """All that needs the target in memory; drafters whose files are wrong are left out."""
    on_stage(f"loading {config.model.public_name}")
    try:
        with LLM(config=_examined(config, drafters)) as llm:
            found.findings += check_engine(llm)
            if plan.prompts and drafters:
                _examine_drafters(
                    config, drafters, plan, ExaminedTarget(llm, path), found, on_stage
                )
    except SlipstreamError as error:
        found.findings.append(wrong("engine", error))


def _examine_drafters(
    config: Config,
    drafters: tuple[DrafterConfig, ...],
    plan: Plan,
    target: ExaminedTarget,
    found: Examination,
    on_stage: OnStage,
) -> None:
    on_stage("answering without drafts")
    cases = target.answer([_encode(target.llm, item) for item in plan.prompts], plan.max_tokens)
    if not cases:
        found.findings.append(
            Finding("acceptance", "skipped", "no prompt leaves room for an answer")
        )
        return
    for item in drafters:
        on_stage(f"{item.name}: answering with its drafts")
        check = f"{item.name}: acceptance"
        try:
            served = target.served_length(cases, plan.max_tokens, item.name)
            if served is not None:
                found.served[item.name] = served
            if isinstance(item, DraftNetConfig):
                found.findings += _examine_net(config, item, target, cases, found, on_stage)
            else:
                found.findings.append(_served_alone(check, served))
        except SlipstreamError as error:
            found.findings.append(wrong(check, error))


def _examine_net(
    config: Config,
    item: DraftNetConfig,
    target: ExaminedTarget,
    cases: Sequence[Case],
    found: Examination,
    on_stage: OnStage,
) -> list[Finding]:
    path = draft_path(item, config.model)
    checkpoint = open_checkpoint(path)
    dtype = _DTYPES.get(item.dtype, torch.bfloat16)
    net = load_draft(checkpoint, target.hparams, target.ends, dtype)
    masks = sorted(target.llm.tokenizer.special_ids)[:_MAX_MASKS]
    conventions = conventions_of(net, target.hparams, masks)
    texts = target.read(cases, layers_read(conventions, net))
    num_drafts = min(item.max_draft_len, config.speculation.max_draft_len)
    diagnosis = found.diagnoses[item.name] = diagnose(
        net,
        texts,
        num_drafts,
        conventions,
        lambda name: on_stage(f"{item.name}: trying {name}"),
    )
    verdict = judge(f"{item.name}: acceptance", diagnosis)
    origin = check_origin(item, path, identify(target.llm.engine.info.model, target.model))
    served = _check_served(item, diagnosis, found.served.get(item.name))
    return [finding for finding in (origin, verdict, served) if finding is not None]


def _check_served(
    item: DraftNetConfig, diagnosis: Diagnosis, served: float | None
) -> Finding | None:
    """Whether the engine gets from the net what the net can do."""
    check = f"{item.name}: served"
    if served is None:
        return Finding(check, "warning", "the engine drafted nothing with it")
    told = f"mean acceptance length {served:.2f} in the engine, alone"
    is_short = (served - 1.0) < _SERVED_SHARE * (diagnosis.length - 1.0)
    if diagnosis.length >= _PROMISING and is_short:
        return Finding(
            check,
            "wrong",
            f"{told}, where its drafts along the same answers promise {diagnosis.length:.2f}",
            "report this: the net is right and its serving is not",
        )
    return Finding(check, "ok", told)


def _served_alone(check: str, served: float | None) -> Finding:
    if served is None:
        return Finding(check, "ok", "it found nothing to draft in these answers")
    return Finding(check, "ok", f"mean acceptance length {served:.2f} in the engine, alone")


def _examined(config: Config, drafters: tuple[DrafterConfig, ...]) -> Config:
    """The configuration with these drafters, each always to its full length, token by token."""
    whole = {"min_score": 0.0}  # a net's own doubt would end its drafts early
    update = {
        "drafters": tuple(
            item.model_copy(update=whole) if isinstance(item, DraftNetConfig | MtpConfig) else item
            for item in drafters
        ),
        "controller": FixedControl(),
        "verification": ExactConfig(),
    }
    speculation = config.speculation.model_copy(update=update)
    return config.model_copy(update={"speculation": speculation})


def _encode(llm: LLM, messages: Sequence[Message]) -> list[int]:
    """A conversation's first turn; as bare text where there is no chat template."""
    try:
        return llm.render(messages)
    except SlipstreamError:
        text = "\n".join(str(message.get("content", "")) for message in messages)
        return llm.tokenizer.encode(text)
