"""`slipstream chat`: talk to a model in the terminal."""

from __future__ import annotations

import re
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from slipstream.cli.options import (
    ConfigOption,
    ModelOption,
    SetOption,
    SpeculationOption,
    load_drafting,
)
from slipstream.errors import RequestError, TokenizerError
from slipstream.sampling.params import SEED_BITS, SamplingParams

if TYPE_CHECKING:  # torch is imported only when the command runs
    from slipstream.engine.llm import LLM

app = typer.Typer(help="Chat with a model in the terminal.")

HELP = "Empty line or /quit ends, /reset forgets the conversation, /seed N fixes the seed."


@app.command()
def chat(
    *,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of one answer.")] = 512,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.7,
    top_p: Annotated[float, typer.Option()] = 0.95,
    seed: Annotated[int | None, typer.Option(help="Drawn anew for each answer if unset.")] = None,
    model: ModelOption = None,
    speculation: SpeculationOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Chat in the terminal; answers stream, and each ends with what speculation did."""
    params = SamplingParams(
        temperature=temperature, top_p=top_p, max_tokens=max_tokens, seed=seed or 0
    )
    effective = load_drafting(config, settings, {"model.source": model}, speculation)
    from slipstream.cli.loading import load_llm

    console = Console()
    opening = [{"role": "system", "content": system}] if system else []
    with load_llm(effective) as llm:
        console.print(f"[bold]{escape(llm.engine.info.model)}[/bold]  [dim]{HELP}[/dim]")
        messages = list(opening)
        while (text := _ask(console)) is not None:
            if text == "/reset":
                messages = list(opening)
            elif text.split()[0] == "/seed":
                seed = _read_seed(console, text, seed)
            elif re.fullmatch(r"/[a-z]+", text):
                console.print(f"there is no {text}. {HELP}", style="yellow", markup=False)
            else:
                drawn = secrets.randbits(63) if seed is None else seed
                messages.append({"role": "user", "content": text})
                _answer(console, llm, messages, replace(params, seed=drawn))


def _read_seed(console: Console, text: str, seed: int | None) -> int | None:
    """The seed after `/seed`, None without one; `seed` as it was if it is none."""
    given = text.split()[1:]
    if not given:
        return None
    if re.fullmatch(r"[0-9]{1,20}", " ".join(given)) and int(given[0]) < 2**SEED_BITS:
        return int(given[0])
    console.print(
        f"[red]error:[/red] a seed is a whole number from 0 to {2**SEED_BITS - 1}, "
        f"got {escape(' '.join(given))}",
        highlight=False,
    )
    return seed


def _ask(console: Console) -> str | None:
    try:
        text = console.input("[bold cyan]you>[/bold cyan] ").strip()
    except (EOFError, KeyboardInterrupt):
        return None
    return text if text and text != "/quit" else None


def _answer(
    console: Console, llm: LLM, messages: list[dict[str, str]], params: SamplingParams
) -> None:
    answer = ""
    try:
        for event in llm.stream(llm.render(messages), params):
            answer += event.text
            console.print(event.text, end="", markup=False, highlight=False, soft_wrap=True)
            if event.speculation is not None and event.timings is not None:
                stats, seconds = event.speculation, event.timings.end_to_end_s
                console.print(
                    f"\n[dim]{event.num_output_tokens} tokens, "
                    f"{event.num_output_tokens / max(seconds, 1e-9):.0f} tokens/s, "
                    f"mean acceptance length {stats.mean_acceptance_length:.2f}, "
                    f"seed {params.seed}[/dim]"
                )
    except (RequestError, TokenizerError) as error:  # of this message; the conversation goes on
        console.print(f"[red]error:[/red] {escape(error.message)}", highlight=False)
        messages.pop()
        return
    except KeyboardInterrupt:
        console.print("\n[dim]stopped[/dim]")
    messages.append({"role": "assistant", "content": answer})
