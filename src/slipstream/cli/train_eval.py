"""`slipstream train eval`: acceptance of a draft net, along answers or in the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from slipstream.bench.document import check_writable
from slipstream.bench.prompts import Prompt, read_prompts, select_prompts
from slipstream.cli.options import ConfigOption, ModelOption, SetOption, load
from slipstream.cli.training import (
    CacheOption,
    conversation_of,
    count_bar,
    open_target,
)
from slipstream.config.schema import Config
from slipstream.errors import ConfigError

if TYPE_CHECKING:  # these import torch
    from slipstream.sampling.params import SamplingParams
    from slipstream.training.dataset import Split
    from slipstream.training.evaluate import EvaluationRow
    from slipstream.training.served import ServedRow

_OF_DATA = {
    "cache": "--cache",
    "held_out": "--held-out/--trained",
    "max_answers": "--max-answers",
}
_OF_PROMPTS = {
    "per_category": "--per-category",
    "max_tokens": "--max-tokens",
    "temperature": "--temperature",
    "draft_len": "--draft-len",
    "children": "--children",
    "nodes": "--nodes",
    "beside": "--beside",
    "seed": "--seed",
}

DataOption = Annotated[
    Path | None,
    typer.Option("--data", "-d", help="Measure along these answers, without the engine."),
]
PromptsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--prompts",
        "-p",
        help="Answer these prompts in the engine, all their turns, this drafter alone; repeatable.",
    ),
]
SideOption = Annotated[
    bool,
    typer.Option(
        "--held-out/--trained",
        help="With --data: answers that were held out, or those trained on.",
    ),
]
NetArgument = Annotated[
    str,
    typer.Argument(
        metavar="NET",
        help="Folder of a run of `slipstream train fit`, a drafter's folder, .gguf file or hub "
        "id, or the name of a shipped one, such as dspark.",
    ),
]
LengthOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="With --prompts: longest branch; not given: as it was trained, or 3 where its file "
        "says nothing.",
    ),
]
CategoryOption = Annotated[
    int | None, typer.Option(min=1, help="With --prompts: so many of each, evenly spaced.")
]
ChildrenOption = Annotated[
    int,
    typer.Option(min=1, help="With --prompts: tokens behind each; 1 drafts a chain, more a tree."),
]
NodesOption = Annotated[
    int | None,
    typer.Option(min=1, help="With --prompts: of a tree; not given: --draft-len x --children."),
]
BesideOption = Annotated[
    list[str] | None,
    typer.Option(
        help="With --prompts: kind of another drafter, such as suffix, to merge with; repeatable."
    ),
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write all numbers.")]


def evaluate(
    context: typer.Context,
    net: NetArgument,
    *,
    data: DataOption = None,
    cache: CacheOption = None,
    held_out: SideOption = True,
    max_answers: Annotated[int, typer.Option(min=1, help="With --data: of these at most.")] = 400,
    prompts: PromptsOption = None,
    per_category: CategoryOption = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="With --prompts: longest answer.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="With --prompts.")] = 0.0,
    draft_len: LengthOption = None,
    children: ChildrenOption = 1,
    nodes: NodesOption = None,
    beside: BesideOption = None,
    seed: Annotated[int, typer.Option(min=0, help="With --prompts.")] = 1,
    json_file: JsonOption = None,
    model: ModelOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Mean acceptance length by category: an estimate along answers, or the engine's own."""
    if json_file is not None:
        check_writable(json_file)
    if (data is None) == (not prompts):
        raise ConfigError(
            "give answers to measure along or prompts to answer",
            hint="--data DIR is quick; --prompts FILE runs the engine",
        )
    flags = {"model.source": model}
    if data is not None:
        _refuse_given(context, _OF_PROMPTS, "--data", "--prompts")
        effective = load(config, settings, flags)
        side: Split = "validation" if held_out else "train"
        rows = _along_answers(effective, net, data, cache, side, max_answers)
        _publish(_estimates(rows), rows, json_file)
        return
    _refuse_given(context, _OF_DATA, "--prompts", "--data")
    from slipstream.sampling.params import SamplingParams
    from slipstream.training.given import find_served
    from slipstream.training.served import DraftShape, drafter_settings

    shape = DraftShape(draft_len, children, nodes, tuple(beside or ()))
    served = find_served(net, load(config, settings, flags).model)
    own = drafter_settings(served, shape)
    asked = select_prompts(read_prompts(prompts or []), per_category=per_category)
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
    _in_engine(load(config, settings, flags | own), asked, params, json_file)


def _refuse_given(
    context: typer.Context, others: Mapping[str, str], asked: str, instead: str
) -> None:
    """Refuse flags of the other way to measure, which would have no effect.

    Args:
        others: Parameters of the command that belong to it, with their flags.
        asked, instead: The flag that chose this way, and that of the other.
    """
    given = []
    for name, flag in others.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            given.append(flag)
    if given:
        raise ConfigError(
            f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect with {asked}",
            hint=f"leave out what belongs to {instead}, or measure with {instead} in place of "
            f"{asked}",
        )


def _in_engine(
    config: Config, asked: Sequence[Prompt], params: SamplingParams, json_file: Path | None
) -> None:
    from slipstream.cli.loading import load_llm
    from slipstream.training.served import measure_served

    conversations = [conversation_of(item) for item in asked]
    num_turns = sum(len(item.turns) for item in conversations)
    with load_llm(config) as llm, count_bar("answering", num_turns) as advance:
        served = measure_served(llm, conversations, params, advance)
    _publish(_served(served), served, json_file)
    if num_cut := num_turns - served[0].num_turns:
        Console().print(f"left out: {num_cut:,} turns that leave no room for an answer")


def _along_answers(
    config: Config, net: str, data: Path, cache: Path | None, side: Split, max_answers: int
) -> list[EvaluationRow]:
    from slipstream.training.dataset import open_dataset
    from slipstream.training.evaluate import evaluate as measure
    from slipstream.training.given import open_given
    from slipstream.training.session import open_source

    target = open_target(config)
    dataset = open_dataset(data, target.identity)
    indices = dataset.indices(side)
    if not indices:
        raise _nothing_of(side, data)
    given = open_given(net, target, config.model)
    chosen = given.settings.to_measure()
    return measure(
        given.net,
        given.net.objective(chosen),
        chosen.fit,
        open_source(target, dataset, chosen.net.tap_layer_ids, cache),
        dataset.answers,
        indices[:max_answers],
        chosen.net.max_draft_len,
    )


def _nothing_of(side: Split, data: Path) -> ConfigError:
    if side == "validation":
        return ConfigError(
            f"{data} has no answers that are held out: there is nothing to measure",
            hint="--trained measures along those trained on; `slipstream train data "
            "--validation-share` above 0 holds some out",
        )
    return ConfigError(
        f"{data} has no answers to train on: there is nothing to measure",
        hint="--held-out measures along those that are held out",
    )


def _publish(table: Table, rows: Sequence[EvaluationRow | ServedRow], file: Path | None) -> None:
    from slipstream.training.run_folder import write_json

    if file is not None:
        write_json(file, [asdict(row) for row in rows])
    Console().print(table)


def _estimates(rows: Iterable[EvaluationRow]) -> Table:
    table = _table("answers", "count", "drafts", "length, T = 1", "greedy", "greedy by depth")
    for row in rows:
        table.add_row(
            row.label,
            f"{row.num_answers:,}",
            f"{row.num_blocks:,}",
            f"{row.sampled_length:.2f}",
            f"{row.greedy_length:.2f}",
            _shares(row.greedy_shares),
        )
    return table


def _served(rows: Iterable[ServedRow]) -> Table:
    table = _table("prompts", "count", "turns", "steps", "length", "by depth")
    for row in rows:
        length = f"{row.mean_acceptance_length:.2f}"
        counts = (f"{row.num_prompts:,}", f"{row.num_turns:,}", f"{row.num_steps:,}")
        table.add_row(row.label, *counts, length, _shares(row.shares))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _shares(shares: Iterable[float]) -> str:
    return " ".join(f"{share:.2f}" for share in shares)
