"""User turns that the target writes itself, for targets whose users' prompts nobody has.

An instruct model has seen many user turns in its chat template. Given the template up to where a
user's text begins, it writes one. (Xu et al. 2024, arXiv:2406.08464.)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from slipstream.engine.llm import LLM
from slipstream.errors import TokenizerError
from slipstream.sampling.noise import derive
from slipstream.sampling.params import SamplingParams
from slipstream.training.answers import DISK_HINT
from slipstream.training.conversations import Conversation
from slipstream.weights.disk import disk_errors

_MARK = "\u2063slipstream\u2063"
_MAX_TOKENS = 192
_MIN_CHARS = 12


def write_self_prompts(
    llm: LLM, file: Path, count: int, seed: int, on_prompts: Callable[[int], None]
) -> list[Conversation]:
    """User turns numbered 0 to `count` - 1; those that `file` has are not written again.

    A number may give nothing usable: an empty turn, or one that does not end. It stays empty.

    Raises:
        TokenizerError: The chat template hides where a user's text begins.
        CapacityError: The disk is full; what is written is kept.
    """
    texts = _read(file)
    missing = [number for number in range(count) if number not in texts]
    if missing:
        front = _front_of_user_turn(llm)
        params = [
            SamplingParams(
                temperature=1.0, top_p=0.98, max_tokens=_MAX_TOKENS, seed=derive(seed, number)
            )
            for number in missing
        ]
        with (
            disk_errors(file.parent, DISK_HINT),
            file.open("a", encoding="utf-8", newline="\n") as lines,
        ):
            for index, generation in llm.completed([front] * len(missing), params):
                choice = generation.choices[0]
                is_usable = choice.finish_reason == "stop" and len(choice.text) >= _MIN_CHARS
                texts[missing[index]] = choice.text.strip() if is_usable else ""
                entry = {"number": missing[index], "text": texts[missing[index]]}
                lines.write(json.dumps(entry, ensure_ascii=False) + "\n")
                lines.flush()
                on_prompts(1)
    return [
        Conversation(f"self/{number:06d}", "self", (({"role": "user", "content": text},),))
        for number, text in sorted(texts.items())
        if text and number < count
    ]


def _read(file: Path) -> dict[int, str]:
    if not file.exists():
        return {}
    content = file.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    if len(complete) < len(content):  # the process was killed in the middle of a line
        file.write_bytes(complete)
    entries = [json.loads(line) for line in complete.decode().split("\n") if line]
    return {entry["number"]: entry["text"] for entry in entries}


def _front_of_user_turn(llm: LLM) -> list[int]:
    rendered = llm.render([{"role": "user", "content": _MARK}])
    text = llm.tokenizer.decode(rendered, skip_special=False)
    front, mark, _ = text.partition(_MARK)
    if not mark:
        raise TokenizerError(
            "the chat template changes a user's text, so the target cannot be asked to write one",
            hint="give prompts with --prompts",
        )
    return llm.tokenizer.encode(front, add_special=False)
