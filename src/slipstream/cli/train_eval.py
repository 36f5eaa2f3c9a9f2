"""`slipstream train eval`: acceptance of a draft net, along answers or in the engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    from slipstream.training.evaluate import EvaluationRow
    from slipstream.training.served import ServedRow

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
    typer.Option("--held-out/--trained", help="Answers that were held out, or those trained on."),
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
        help="Longest branch; not given: as it was trained, or 3 where its file says nothing.",
    ),
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write all numbers.")]


def evaluate(
    net: NetArgument,
    *,
    data: DataOption = None,
    cache: CacheOption = None,
    held_out: SideOption = True,
    max_answers: Annotated[int, typer.Option(min=1, help="With --data: of these at most.")] = 400,
    prompts: PromptsOption = None,
    per_category: Annotated[int | None, typer.Option(min=1, help="Evenly spaced.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="With --prompts: longest answer.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="With --prompts.")] = 0.0,
    draft_len: LengthOption = None,
    children: Annotated[
        int, typer.Option(min=1, help="Tokens behind each: 1 drafts a chain, more a tree.")
    ] = 1,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Of a tree; not given: --draft-len x --children.")
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(help="Kind of another drafter, such as suffix, to merge with; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0)] = 1,
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
        effective = load(config, settings, flags)
        rows = _along_answers(effective, net, data, cache, max_answers, held_out=held_out)
        _publish(_estimates(rows), rows, json_file)
        return
    from slipstream.sampling.params import SamplingParams
    from slipstream.training.given import find_served
    from slipstream.training.served import DraftShape, drafter_settings

    shape = DraftShape(draft_len, children, nodes, tuple(beside or ()))
    served = find_served(net, load(config, settings, flags).model)
    own = drafter_settings(served, shape)
    asked = select_prompts(read_prompts(prompts or []), per_category=per_category)
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
    _in_engine(load(config, settings, flags | own), asked, params, json_file)


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
    config: Config, net: str, data: Path, cache: Path | None, max_answers: int, *, held_out: bool
) -> list[EvaluationRow]:
    from slipstream.training.dataset import open_dataset
    from slipstream.training.evaluate import evaluate as measure
    from slipstream.training.given import open_given
    from slipstream.training.session import open_source

    target = open_target(config)
    given = open_given(net, target, config.model)
    dataset = open_dataset(data, target.identity)
    chosen = given.settings.to_measure()
    return measure(
        given.net,
        given.net.objective(chosen),
        chosen.fit,
        open_source(target, dataset, chosen.net.tap_layer_ids, cache),
        dataset.answers,
        dataset.indices("validation" if held_out else "train")[:max_answers],
        chosen.net.max_draft_len,
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
