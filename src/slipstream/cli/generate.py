"""`slipstream generate`: complete prompts in this process."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from slipstream.cli.options import (
    ConfigOption,
    ModelOption,
    SetOption,
    SpeculationOption,
    load_drafting,
)
from slipstream.cli.prompt_file import read_prompts
from slipstream.errors import ConfigError
from slipstream.sampling.params import SamplingParams

if TYPE_CHECKING:  # torch is imported only when the command runs
    from slipstream.engine.llm import Generation

app = typer.Typer(help="Complete prompts and print or save the outputs.")


@app.command()
def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts; `-` reads one.")] = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="JSON lines with `prompt` or `messages`.")
    ] = None,
    is_chat: Annotated[
        bool, typer.Option("--chat/--raw", help="Wrap each prompt as a chat message, or not.")
    ] = True,
    max_tokens: Annotated[int, typer.Option(help="Most output tokens.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option()] = 1.0,
    n: Annotated[int, typer.Option(help="Choices per prompt.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Drawn and reported if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    model: ModelOption = None,
    speculation: SpeculationOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Complete prompts and print the outputs, with what speculation did."""
    texts = _prompts(prompts or [], file)
    seed = secrets.randbits(63) if seed is None else seed
    params = SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed)
    effective = load_drafting(config, settings, {"model.source": model}, speculation)
    from slipstream.cli.loading import load_llm

    with load_llm(effective) as llm:
        tokens = [
            llm.tokenizer.encode(text)
            if isinstance(text, str) and not is_chat
            else llm.render([{"role": "user", "content": text}] if isinstance(text, str) else text)
            for text in texts
        ]
        generations = llm.generate(tokens, params, n=n)
    for generation in generations:
        if as_json:
            typer.echo(json.dumps(_record(generation, seed), ensure_ascii=False))
        else:
            _print(generation, seed)


def _prompts(arguments: list[str], file: Path | None) -> list[str | list[dict[str, str]]]:
    texts: list[str | list[dict[str, str]]] = [
        sys.stdin.read() if text == "-" else text for text in arguments
    ]
    if file is not None:
        texts += read_prompts(file)
    if not texts:
        raise ConfigError("no prompt was given", hint='try: slipstream generate "Hello"')
    return texts


def _record(generation: Generation, seed: int) -> dict[str, object]:
    return {
        "seed": seed,
        "num_prompt_tokens": len(generation.prompt_token_ids),
        "choices": [
            {
                "text": choice.text,
                "token_ids": choice.token_ids,
                "finish_reason": choice.finish_reason,
                "mean_acceptance_length": choice.speculation.mean_acceptance_length,
                "num_draft_tokens": choice.speculation.num_draft_tokens,
                "num_accepted_tokens": choice.speculation.num_accepted_tokens,
            }
            for choice in generation.choices
        ],
    }


def _print(generation: Generation, seed: int) -> None:
    console = Console(stderr=True)
    for choice in generation.choices:
        typer.echo(choice.text)
        stats = choice.speculation
        table = Table(show_header=False, box=None, pad_edge=False, style="dim")
        table.add_row(
            f"{len(choice.token_ids)} tokens, {choice.finish_reason}",
            f"accepted {stats.num_accepted_tokens} of {stats.num_draft_tokens} drafted",
            f"mean acceptance length {stats.mean_acceptance_length:.2f}",
            f"seed {seed}",
        )
        console.print(table)
