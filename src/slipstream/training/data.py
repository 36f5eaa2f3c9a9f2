"""Make a folder of answers: imported, generated, or both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from slipstream.errors import ConfigError, WeightsError
from slipstream.models.identity import TargetIdentity
from slipstream.tokenization.tokenizer import Tokenizer
from slipstream.training.answers import (
    DISK_HINT,
    Answer,
    append_answers,
    read_answers,
    read_interrupted,
)
from slipstream.training.dataset import (
    ANSWERS_FILE,
    MANIFEST_FILE,
    read_manifest,
    write_manifest,
)
from slipstream.training.overlap import ProtectedTexts
from slipstream.weights.disk import disk_errors


def begin_folder(path: Path, target: TargetIdentity, validation_share: float) -> Path:
    """Make the folder, or check that it holds this target's answers; returns the file of answers.

    Raises:
        WeightsError: It holds those of another target, or of one that is not known, or cannot be
            written to.
        CapacityError: The disk is full.
        ConfigError: It holds out another share: prompts that were trained on could be held out.
    """
    file = path / ANSWERS_FILE
    with disk_errors(path, DISK_HINT):
        path.mkdir(parents=True, exist_ok=True)
        file.touch()
        has_answers = file.stat().st_size > 0
    if (path / MANIFEST_FILE).exists():
        manifest = read_manifest(path)
        target.require_same(manifest.target, f"the answers in {path}")
        if manifest.validation_share != validation_share:
            raise ConfigError(
                f"{path} holds out {manifest.validation_share:g} of its prompts, not "
                f"{validation_share:g}; another share would mix what was held out with the rest",
                hint=f"give --validation-share {manifest.validation_share:g} or another --out",
            )
    elif has_answers:
        raise WeightsError(
            f"{path} has answers, but no {MANIFEST_FILE} that says of which target",
            hint="give another --out, and these answers to it with --import if they are this "
            "target's",
        )
    else:  # said before the first answer, for a command that is killed behind it
        write_manifest(path, target, validation_share, (), Counter())
    return file


def import_answers(
    files: Sequence[Path],
    into: Path,
    tokenizer: Tokenizer,
    protected: ProtectedTexts,
    categories: Mapping[str, str],
    dropped: Counter[str],
    on_answers: Callable[[int], None],
) -> None:
    """Append the answers of other files that are not there yet.

    Args:
        categories: Prompt id -> category, for files that do not say.
        dropped: Reasons are counted into it.
    Raises:
        ConfigError: A file holds something else; names the line.
        WeightsError: An answer has tokens that the target does not know.
    """
    present = {(answer.key, answer.prompt_ids) for answer in read_interrupted(into)}
    kept: list[Answer] = []
    for file in files:
        for answer in read_answers(file):
            on_answers(1)
            if max((*answer.prompt_ids, *answer.response_ids)) >= tokenizer.vocab_size:
                raise WeightsError(
                    f"{file} has an answer to {answer.prompt_id} with token "
                    f"{max((*answer.prompt_ids, *answer.response_ids))}, but the target has "
                    f"{tokenizer.vocab_size} tokens",
                    hint="import answers of this very target",
                )
            if (answer.key, answer.prompt_ids) in present:
                dropped["there already"] += 1
            elif protected.repeats(prompt_texts(answer.prompt_ids, tokenizer)):
                dropped["repeats an evaluation prompt"] += 1
            else:
                category = answer.category or categories.get(answer.prompt_id, "")
                kept.append(answer.model_copy(update={"category": category}))
            present.add((answer.key, answer.prompt_ids))
    append_answers(into, kept)


def prompt_texts(prompt_ids: Iterable[int], tokenizer: Tokenizer) -> list[str]:
    """Texts between the special tokens of a prompt, and each without its first line as well.

    A chat template puts a role's name on a line of its own, or nothing.
    """
    texts: list[str] = []
    segment: list[int] = []
    for token in (*prompt_ids, None):
        if token is not None and tokenizer.visible_bytes(token):
            segment.append(token)
            continue
        text = tokenizer.decode(segment)
        texts += [text, text.partition("\n")[2]]
        segment = []
    return [text for text in texts if text.strip()]
