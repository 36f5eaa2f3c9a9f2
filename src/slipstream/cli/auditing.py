"""How `slipstream audit` runs and tells."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from slipstream.audit.plan import (
    CONFIGURED,
    MERGE,
    OFF,
    AuditPlan,
    parse_conditions,
    parse_drafter_sets,
)
from slipstream.bench.prompts import Prompt
from slipstream.clock import SystemClock
from slipstream.config.schema import Config
from slipstream.config.secrets import API_KEYS_VARIABLE
from slipstream.errors import ConfigError

if TYPE_CHECKING:  # these import torch
    from slipstream.audit.findings import Report
    from slipstream.audit.outcome import AuditTarget
    from slipstream.audit.tables import TokenText

ALL_CONDITIONS = "cold,warm,chunked,preempted"
URL_CONDITIONS = "cold,warm"
_PLAIN_WIDTH = 140


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the flags ask for, before it is known which drafters there are."""

    samplings: tuple[str, ...]
    concurrencies: tuple[int, ...]
    drafters: str | None
    conditions: str | None
    max_tokens: int
    seed: int

    def plan(self, drafters: str, known: Sequence[str] | None, conditions: str) -> AuditPlan:
        """The plan; the arguments are what holds where no flag was given."""
        return AuditPlan(
            samplings=self.samplings,
            concurrencies=self.concurrencies,
            drafter_sets=parse_drafter_sets(self.drafters or drafters, known),
            conditions=parse_conditions(self.conditions or conditions),
            max_tokens=self.max_tokens,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class Audited:
    """A finished audit, and what is needed to tell of it."""

    plan: AuditPlan
    report: Report
    facts: Mapping[str, Any]  # Any: JSON values
    token_text: TokenText


def keep_named(prompts: Sequence[Prompt], ids: str) -> list[Prompt]:
    """The prompts with the ids of a comma-separated list.

    Raises:
        ConfigError: There is no prompt of such an id.
    """
    wanted = dict.fromkeys(item.strip() for item in ids.split(","))
    found = {prompt.prompt_id: prompt for prompt in prompts}
    unknown = [name for name in wanted if name not in found]
    if unknown:
        raise ConfigError(
            f'--only names "{unknown[0]}", which no prompt is called',
            hint=f"the first is {prompts[0].prompt_id}",
        )
    return [found[name] for name in wanted]


def audit_url(url: str, wanted: Wanted, prompts: list[Prompt]) -> Audited:
    import httpx

    from slipstream.audit.url_target import TIMEOUT_S, UrlTarget

    plan = wanted.plan(CONFIGURED, None, URL_CONDITIONS)
    if any(condition.is_chunked or condition.is_preempted for condition in plan.conditions):
        raise ConfigError(
            "a client cannot make a server chunk prompts or preempt requests",
            hint="with --url, --conditions takes cold and warm",
        )
    # A key in a flag would end up in the report's command line.
    api_key = os.environ.get(API_KEYS_VARIABLE, "").partition(",")[0].strip()
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base_url = url.rstrip("/").removesuffix("/v1")
    with httpx.Client(base_url=base_url, headers=headers, timeout=TIMEOUT_S) as client:
        target = UrlTarget(client)
        report = _run(target, plan, prompts)
        texts = {token: target.token_text(token) for token in report.tokens()}
    return Audited(plan, report, target.facts, texts.__getitem__)


def audit_engine(
    config: Config, wanted: Wanted, draft_source: str, prompts: list[Prompt]
) -> Audited:
    from slipstream.audit.engine_target import EngineTarget, audit_drafters
    from slipstream.cli.loading import load_llm
    from slipstream.observability.logs import configure_logs

    configure_logs("error", config.observability.log_format)  # memory is scarce on purpose
    drafters = audit_drafters(config, draft_source)
    wanted.plan(OFF, [item.name for item in drafters], ALL_CONDITIONS)  # flags before loading
    target = EngineTarget(config, drafters, load=load_llm)
    names = target.drafter_names()
    configured = [CONFIGURED] if config.speculation.drafters else []
    default_sets = ",".join([*configured, OFF, *names, MERGE])
    plan = wanted.plan(default_sets, names, ALL_CONDITIONS)
    report = _run(target, plan, prompts)
    return Audited(plan, report, target.facts, target.token_text)


def _run(target: AuditTarget, plan: AuditPlan, prompts: list[Prompt]) -> Report:
    from slipstream.audit.lossless import LosslessAudit

    with progress_bar() as bar:
        nonce = secrets.token_hex(6)
        return LosslessAudit(target, plan, prompts, nonce=nonce, progress=_BarProgress(bar)).run()


def publish(
    audited: Audited,
    is_proof: bool,
    about: Mapping[str, Any],  # Any: JSON values
    json_file: Path | None,
) -> None:
    from slipstream.audit.report import lossless_document, write_json
    from slipstream.audit.tables import print_lossless

    console = output_console()
    print_lossless(audited.report, console, audited.token_text)
    num_divergences = audited.report.num_divergences
    if is_proof:
        console.print("[bold green]No answer differs.[/]")
    elif num_divergences:
        console.print(f"[bold red]{num_divergences} answers differ.[/]")
    else:
        console.print("[bold yellow]No answer differs, but the run is no proof.[/]")
    if json_file is not None:
        about = {**about, "target": dict(audited.facts)}
        document = lossless_document(audited.report, audited.plan, is_proof=is_proof, about=about)
        write_json(document, json_file)


def read_about(prompt_files: list[Path], json_file: Path | None) -> dict[str, Any]:
    """Provenance of a run that begins now; a path of this machine is cut to its last part."""
    from slipstream.audit.report import check_writable
    from slipstream.bench.provenance import read_provenance

    if json_file is not None:
        check_writable(json_file)
    command = [Path(item).name if Path(item).is_absolute() else item for item in sys.argv[1:]]
    provenance = read_provenance(["slipstream", *command], prompt_files, SystemClock())
    return {"provenance": asdict(provenance)}


def output_console() -> Console:
    """Standard output; wide enough for the tables where it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_PLAIN_WIDTH)


def progress_bar() -> Progress:
    """A bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))


class _BarProgress:
    """Moves a bar; where standard error is no terminal, prints a line a setting.

    Implements `slipstream.audit.lossless.AuditProgress`.
    """

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("loading", total=None)
        self._num_jobs = self._num_done = 0

    def begin(self, num_jobs: int) -> None:
        """Set the total."""
        self._num_jobs = num_jobs
        self._bar.update(self._task, total=num_jobs)

    def describe(self, what: str) -> None:
        """Say what runs."""
        self._bar.update(self._task, description=what)
        console = self._bar.console
        if not console.is_terminal:
            console.print(f"{self._num_done}/{self._num_jobs} {what}", highlight=False)

    def advance(self) -> None:
        """One generation more."""
        self._num_done += 1
        self._bar.advance(self._task)
