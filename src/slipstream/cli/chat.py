"""`slipstream chat`: talk to a model in the terminal."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from slipstream.cli.options import (
    ConfigOption,
    ModelOption,
    SetOption,
    SpeculationOption,
    load,
    speculation_flag,
)
from slipstream.errors import RequestError
from slipstream.sampling.params import SamplingParams

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
    effective = load(config, settings, {"model.source": model} | speculation_flag(speculation))
    from slipstream.cli.loading import load_llm

    console = Console()
    opening = [{"role": "system", "content": system}] if system else []
    with load_llm(effective) as llm:
        console.print(f"[bold]{llm.engine.info.model}[/bold]  [dim]{HELP}[/dim]")
        messages = list(opening)
        while (text := _ask(console)) is not None:
            if text == "/reset":
                messages = list(opening)
            elif text.startswith("/seed"):
                seed = int(text.split()[1]) if text.split()[1:] else None
            else:
                params = SamplingParams(
                    temperature=temperature,
                    top_p=top_p,
                    max_tokens=max_tokens,
                    seed=secrets.randbits(63) if seed is None else seed,
                )
                messages.append({"role": "user", "content": text})
                _answer(console, llm, messages, params)


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
    except RequestError as error:
        console.print(f"[red]error:[/red] {error.message}", highlight=False)
        messages.pop()
        return
    except KeyboardInterrupt:
        console.print("\n[dim]stopped[/dim]")
    messages.append({"role": "assistant", "content": answer})
