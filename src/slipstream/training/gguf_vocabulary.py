"""The target's vocabulary as GGUF keys: llama.cpp asks a draft net's file for it.

llama.cpp takes the number of tokens from it and compares it with the target's. A draft net never
cuts a text, so the rule of cutting may be `default` where GGUF has no name for the target's.

Source: llama.cpp, `llama-vocab.cpp` and `convert_hf_to_gguf.py --target-model-dir`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slipstream.errors import SlipstreamError
from slipstream.tokenization.gguf_keys import TokenType
from slipstream.tokenization.gguf_tokenizer import tokenizer_from_gguf
from slipstream.tokenization.pre_tokenizers import GPT2_WORDS, pre_tokenizer_name
from slipstream.tokenization.tokenizer import Tokenizer
from slipstream.tokenization.vocabulary import require_same_vocabulary
from slipstream.weights.gguf_reader import read_gguf

Keys = dict[str, Any]  # Any: texts, numbers, flags and lists of them

_PREFIX = "tokenizer.ggml."
_MASK_KEY = f"{_PREFIX}mask_token_id"  # the drafter's own, if it has one
_DIGIT = r"\p{N}"

log = logging.getLogger("slipstream.training")


def vocabulary_keys(path: Path, tokenizer: Tokenizer, vocab_size: int) -> Keys:
    """Keys of the tokenizer of the target at `path`; none, with a warning, if GGUF lacks its kind.

    Args:
        tokenizer: The target's, which a reader of the keys must agree with.
        vocab_size: Rows of the target's head; ids without a token are marked as unused.
    """
    try:
        keys = _padded(_stored(path) or _from_files(path, tokenizer), vocab_size)
        require_same_vocabulary(tokenizer, Tokenizer(tokenizer_from_gguf(keys)))
    except (SlipstreamError, OSError, ValueError, KeyError, TypeError) as error:
        log.warning(
            "the file has no tokenizer, so that llama.cpp does not load it; Slipstream does: %s",
            error,
        )
        return {}
    return keys


def _stored(path: Path) -> Keys | None:
    """Those of a GGUF file, as they are."""
    found = [path] if path.suffix == ".gguf" else sorted(path.glob("*.gguf"))
    if len(found) != 1:
        return None
    metadata = read_gguf(found[0]).metadata
    keys = {name: value for name, value in metadata.items() if name.startswith("tokenizer.")}
    keys.pop(_MASK_KEY, None)
    return keys if f"{_PREFIX}tokens" in keys else None


def _from_files(path: Path, tokenizer: Tokenizer) -> Keys:
    """Made from a tokenizer.json of byte pairs.

    Raises:
        ValueError: It is of another kind.
    """
    folder = path if path.is_dir() else path.parent
    layout = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model = layout["model"]
    if model["type"] != "BPE" or "ByteLevel" not in json.dumps(layout["decoder"]):
        raise ValueError(f"its tokenizer is {model['type']}, and only byte-level BPE is written")
    added = {token["id"]: token for token in layout["added_tokens"]}
    pieces = {token_id: piece for piece, token_id in model["vocab"].items()}
    pieces |= {token_id: token["content"] for token_id, token in added.items()}
    tokens = [pieces.get(token_id, "") for token_id in range(max(pieces) + 1)]
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    keys: Keys = {
        f"{_PREFIX}model": "gpt2",
        f"{_PREFIX}pre": pre_tokenizer_name(tuple(_patterns(layout["pre_tokenizer"]))),
        f"{_PREFIX}tokens": tokens,
        f"{_PREFIX}token_type": [
            int(_type_of(token_id, pieces, added)) for token_id in range(len(tokens))
        ],
        f"{_PREFIX}merges": pairs,
    }
    if tokenizer.bos_token_id is not None:
        keys[f"{_PREFIX}bos_token_id"] = tokenizer.bos_token_id
    if tokenizer.eos_token_ids:
        keys[f"{_PREFIX}eos_token_id"] = tokenizer.eos_token_ids[0]
    return keys


def _type_of(
    token_id: int,
    pieces: Mapping[int, str],
    added: Mapping[int, Mapping[str, Any]],  # Any: JSON
) -> TokenType:
    if token_id in added:
        return TokenType.CONTROL if added[token_id]["special"] else TokenType.USER_DEFINED
    return TokenType.NORMAL if token_id in pieces else TokenType.UNUSED


def _patterns(rule: Any) -> Iterator[str]:  # Any: JSON
    """What cuts texts, in order."""
    if not isinstance(rule, Mapping):
        return
    if rule["type"] == "Sequence":
        for part in rule["pretokenizers"]:
            yield from _patterns(part)
    elif rule["type"] == "Digits" and rule.get("individual_digits"):
        yield _DIGIT
    elif rule["type"] == "Split":
        yield str(rule["pattern"].get("Regex", ""))
    elif rule["type"] == "ByteLevel" and rule.get("use_regex", True):
        yield GPT2_WORDS


def _padded(keys: Keys, vocab_size: int) -> Keys:
    """With a piece for every row of the target's head."""
    tokens = list(keys[f"{_PREFIX}tokens"])
    missing = range(len(tokens), vocab_size)
    fillers: Mapping[str, list[Any]] = {
        "tokens": [f"[PAD{token_id}]" for token_id in missing],
        "token_type": [int(TokenType.UNUSED)] * len(missing),
        "scores": [0.0] * len(missing),
    }
    lists = {
        f"{_PREFIX}{name}": [*keys[f"{_PREFIX}{name}"], *filler]
        for name, filler in fillers.items()
        if f"{_PREFIX}{name}" in keys
    }
    if missing and f"{_PREFIX}token_type" not in lists:
        types = [int(TokenType.NORMAL)] * len(tokens)
        lists[f"{_PREFIX}token_type"] = [*types, *fillers["token_type"]]
    return keys | lists
