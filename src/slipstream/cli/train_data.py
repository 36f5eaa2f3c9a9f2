"""`slipstream train data`: answers of the target to learn from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from slipstream.bench.prompts import Prompt, read_prompts, select_prompts
from slipstream.cli.options import ConfigOption, ModelOption, SetOption, load
from slipstream.cli.training import conversation_of, count_bar, open_target, parse_numbers
from slipstream.config.schema import Config
from slipstream.errors import ConfigError

if TYPE_CHECKING:  # these import torch
    from slipstream.training.conversations import Conversation
    from slipstream.training.dataset import DatasetManifest
    from slipstream.training.generate import GenerationPlan
    from slipstream.training.overlap import ProtectedTexts

SELF_PROMPTS_FILE = "self_prompts.jsonl"

PromptsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--prompts",
        "-p",
        help="Prompts to answer: JSON lines with `messages` or `prompt`; repeatable.",
    ),
]
ImportOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--import",
        help="Answers that this target gave elsewhere: JSON lines with `prompt_id`, `temperature`, "
        "`prompt_ids`, `response_ids` and `finish`, perhaps in .gz; repeatable.",
    ),
]
ProtectOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--protect",
        help="Evaluation prompts. What repeats one, or 8 words in a row of one, is left out; "
        "repeatable.",
    ),
]
CategoriesOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="Prompt files that say the `category` of imported answers, by `id`; repeatable."
    ),
]
TemperatureOption = Annotated[
    str,
    typer.Option(
        help="Temperatures of answers; each prompt gets one of them, and one that is named twice "
        "is twice as frequent."
    ),
]


def data(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to make or to add to.")],
    prompts: PromptsOption = None,
    imports: ImportOption = None,
    protect: ProtectOption = None,
    categories: CategoriesOption = None,
    max_prompts: Annotated[
        int | None, typer.Option(min=1, help="At most so many of --prompts, evenly spaced.")
    ] = None,
    self_prompts: Annotated[
        int, typer.Option(min=0, help="Prompts that the target writes itself.")
    ] = 0,
    temperature: TemperatureOption = "0,0,0.7,1",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 384,
    validation_share: Annotated[
        float, typer.Option(min=0.0, max=0.5, help="Share of prompts that is held out.")
    ] = 0.03,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    model: ModelOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Gather answers of the target; the same command goes on where it was interrupted."""
    if not (prompts or imports or self_prompts):
        raise ConfigError(
            "there is nothing to learn from",
            hint="give --prompts FILE, --import FILE or --self-prompts COUNT",
        )
    if not prompts:
        _refuse_max_prompts(max_prompts)
    effective = load(config, settings, {"model.source": model})
    asked = select_prompts(read_prompts(prompts or []), max_prompts=max_prompts)
    named = {item.prompt_id: item.category for item in read_prompts(categories or [])}
    evaluation = read_prompts(protect or [], may_share_ids=True)
    from slipstream.training.conversations import usable
    from slipstream.training.data import begin_folder, import_answers
    from slipstream.training.dataset import write_manifest
    from slipstream.training.generate import GenerationPlan
    from slipstream.training.overlap import ProtectedTexts

    plan = GenerationPlan(parse_numbers(temperature, "--temperature"), max_tokens, seed)
    target = open_target(effective)
    file = begin_folder(out, target.identity, validation_share)
    protected = ProtectedTexts(text for item in evaluation for text in _texts(item))
    dropped: Counter[str] = Counter()
    if imports:
        tokenizer = target.loaded.tokenizer
        with count_bar("importing", None) as advance:
            import_answers(imports, file, tokenizer, protected, named, dropped, advance)
    identity = target.identity
    del target  # the engine loads it for itself
    if asked or self_prompts:
        conversations = usable(map(conversation_of, asked), protected, dropped)
        _answer(effective, conversations, self_prompts, plan, protected, dropped, out)
    sources = _sources(imports or [], prompts or [], self_prompts)
    sources.append(f"temperatures {temperature}, at most {max_tokens} tokens, seed {seed}")
    manifest = write_manifest(out, identity, validation_share, sources, dropped)
    _print(manifest, Console())
    _require_answers(manifest, out)


def _refuse_max_prompts(max_prompts: int | None) -> None:
    if max_prompts is not None:
        raise ConfigError(
            f"--max-prompts {max_prompts} is of the files of --prompts, and none is given",
            hint="leave it out; --import takes all answers of its files",
        )


def _sources(imports: list[Path], prompts: list[Path], num_self_prompts: int) -> list[str]:
    sources = [f"imported {path.name}" for path in imports]
    sources += [f"answered {path.name}" for path in prompts]
    sources += [f"{num_self_prompts} prompts of the target's own"] if num_self_prompts else []
    return sources


def _require_answers(manifest: DatasetManifest, out: Path) -> None:
    if not any(counts.answers for counts in manifest.splits.values()):
        raise ConfigError(
            f"{out} holds no answers: everything that was given is left out",
            hint="give other prompts or answers; the reasons are above",
        )


def _texts(prompt: Prompt) -> list[str]:
    texts = [prompt.text, *(message.get("content") for message in prompt.messages)]
    return [text for text in texts if isinstance(text, str)]


def _answer(
    config: Config,
    conversations: list[Conversation],
    num_self_prompts: int,
    plan: GenerationPlan,
    protected: ProtectedTexts,
    dropped: Counter[str],
    out: Path,
) -> None:
    from slipstream.cli.loading import load_llm
    from slipstream.training.conversations import usable
    from slipstream.training.dataset import ANSWERS_FILE
    from slipstream.training.generate import generate_answers
    from slipstream.training.self_prompts import write_self_prompts

    with load_llm(config) as llm:
        if num_self_prompts:
            with count_bar("writing prompts", num_self_prompts) as advance:
                own = write_self_prompts(
                    llm, out / SELF_PROMPTS_FILE, num_self_prompts, plan.seed, advance
                )
            conversations = usable([*conversations, *own], protected, dropped)
        num_turns = sum(len(item.turns) for item in conversations)
        with count_bar("answering", num_turns) as advance:
            file = out / ANSWERS_FILE
            generate_answers(llm, conversations, plan, file, dropped, lambda _: advance(1))


def _print(manifest: DatasetManifest, console: Console) -> None:
    table = Table(show_header=True, box=None, header_style="bold")
    for heading in ("part", "answers", "prompt tokens", "response tokens"):
        table.add_column(heading, justify="left" if heading == "part" else "right")
    for side, counts in manifest.splits.items():
        cells = (counts.answers, counts.prompt_tokens, counts.response_tokens)
        table.add_row(side, *(f"{cell:,}" for cell in cells))
    console.print(table)
    for reason, count in manifest.dropped.items():
        console.print(f"left out: {count:,} ({reason})")
