"""A tokenizer from tokenizer.json and the settings files that lie beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from slipstream.errors import TokenizerError
from slipstream.tokenization.parts import TokenizerParts
from slipstream.tokenization.pieces import (
    SPACE_MARK,
    PieceReader,
    byte_level_reader,
    literal_bytes,
    sentencepiece_bytes,
)

Settings = Mapping[str, Any]  # parsed JSON; each value is checked where it is used

_NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def tokenizer_from_files(folder: Path) -> TokenizerParts:
    """Read tokenizer.json with tokenizer_config.json, special_tokens_map.json,
    generation_config.json, config.json and the chat template files, as far as they are there.

    Raises:
        TokenizerError: A file is broken, or the tokenizer is of a kind that cannot be decoded
            exactly.
    """
    path = folder / "tokenizer.json"
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:
        raise TokenizerError(
            f"{path} cannot be read: {error}", hint="fetch the file again"
        ) from error
    # Saved training settings would silently cut or pad prompts.
    backend.no_truncation()
    backend.no_padding()
    try:
        return _with_settings(backend, folder)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TokenizerError(
            f"tokenizer_config.json, or a file beside it in {folder}, is not laid out as expected: "
            f"{error!r}",
            hint="fetch the files again",
        ) from error


def _with_settings(backend: Tokenizer, folder: Path) -> TokenizerParts:
    settings = read_settings(folder / "tokenizer_config.json")
    _add_missing_tokens(backend, settings, folder)
    layout = json.loads(backend.to_str())
    path = folder / "tokenizer.json"
    read, strips_first_space = _piece_reader(layout, path)
    named = _named_tokens(settings, read_settings(folder / "special_tokens_map.json"))
    added = backend.get_added_tokens_decoder()
    return TokenizerParts(
        backend=backend,
        token_bytes=_token_bytes(backend, added, read),
        special_ids=frozenset(token_id for token_id, token in added.items() if token.special),
        bos_token_id=_id_of(backend, named.get("bos_token")),
        eos_token_ids=_eos_token_ids(folder, _id_of(backend, named.get("eos_token"))),
        has_template=layout.get("post_processor") is not None,
        strips_first_space=strips_first_space,
        named_tokens=named,
        chat_templates=_chat_templates(folder, settings),
    )


def read_settings(path: Path) -> Settings:
    """A JSON object from a file; {} if there is no such file.

    Raises:
        TokenizerError: The file is not JSON, or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}", hint="fetch it again") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} must hold a JSON object, it holds {type(value).__name__}")
    return value


def _add_missing_tokens(backend: Tokenizer, settings: Settings, folder: Path) -> None:
    """Add tokens that only tokenizer_config.json knows; their ids must follow the others'."""
    declared: Settings = settings.get("added_tokens_decoder") or {}
    for token_id, entry in sorted((int(key), value) for key, value in declared.items()):
        content = entry["content"] if isinstance(entry, dict) else str(entry)
        if backend.token_to_id(content) is not None:
            continue
        is_special = isinstance(entry, dict) and bool(entry.get("special", False))
        backend.add_tokens([AddedToken(content, normalized=False, special=is_special)])
        if backend.token_to_id(content) != token_id:
            raise TokenizerError(
                f"{folder / 'tokenizer_config.json'} gives {content!r} the id {token_id}, but in "
                f"tokenizer.json it would be {backend.token_to_id(content)}",
                hint="fetch both files again; they belong to different versions",
            )


def _piece_reader(layout: Settings, path: Path) -> tuple[PieceReader, bool]:
    """How pieces become bytes, and whether decoding drops the first space."""
    decoders = list(_parts(layout.get("decoder"), "decoders"))
    kinds = {part["type"] for part in decoders}
    splitters = {part["type"] for part in _parts(layout.get("pre_tokenizer"), "pretokenizers")}
    if "ByteLevel" in kinds or (not kinds and "ByteLevel" in splitters):
        return byte_level_reader(), False
    marks_spaces = any(
        part["type"] == "Metaspace"
        or (part["type"] == "Replace" and part.get("pattern") == {"String": SPACE_MARK})
        for part in decoders
    )
    if marks_spaces or "ByteFallback" in kinds:
        return sentencepiece_bytes, any(map(_drops_first_space, decoders))
    raise TokenizerError(
        f"{path} decodes with {', '.join(sorted(kinds)) or 'nothing'}; supported are byte-level "
        "BPE (ByteLevel) and SentencePiece (Metaspace, Replace, ByteFallback)",
    )


def _parts(part: Settings | None, children: str) -> Iterator[Settings]:
    """A component of tokenizer.json, or the components of a `Sequence`."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for child in part[children]:
        yield from _parts(child, children)


def _drops_first_space(decoder: Settings) -> bool:
    if decoder["type"] == "Metaspace":
        return bool(decoder.get("prepend_scheme", "always") != "never")
    return bool(decoder["type"] == "Strip" and decoder.get("start", 0) > 0)


def _token_bytes(
    backend: Tokenizer, added: Mapping[int, AddedToken], read: PieceReader
) -> list[bytes | None]:
    vocabulary = backend.get_vocab(with_added_tokens=True)
    table: list[bytes | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for piece, token_id in vocabulary.items():
        table[token_id] = literal_bytes(piece) if token_id in added else read(piece)
    return table


def _named_tokens(*sources: Settings) -> dict[str, str]:
    """`bos_token` and the like; the first file that names one wins."""
    named: dict[str, str] = {}
    for source in sources:
        for name in _NAMED_TOKENS:
            value = source.get(name)
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                named.setdefault(name, content)
    return named


def _id_of(backend: Tokenizer, content: str | None) -> int | None:
    return None if content is None else backend.token_to_id(content)


def _eos_token_ids(folder: Path, named_eos: int | None) -> tuple[int, ...]:
    """Ends of text from generation_config.json, else config.json, and the tokenizer's own.

    Generation settings list every end of a turn; the tokenizer names only one.
    """
    ids: Sequence[object] = []
    for name in ("generation_config.json", "config.json"):
        settings = read_settings(folder / name)
        value = settings.get("eos_token_id")
        if value is None and isinstance(settings.get("text_config"), dict):
            value = settings["text_config"].get("eos_token_id")
        if value is not None:
            ids = value if isinstance(value, list) else [value]
            break
    wrong = [token_id for token_id in ids if not isinstance(token_id, int)]
    if wrong:
        raise TokenizerError(f"eos_token_id in {folder} must be ids, got {wrong[0]!r}")
    ends = [*ids, *([] if named_eos is None else [named_eos])]
    return tuple(dict.fromkeys(end for end in ends if isinstance(end, int)))


def _chat_templates(folder: Path, settings: Settings) -> dict[str, str]:
    """Template sources by name: template files before tokenizer_config.json."""
    templates: dict[str, str] = {}
    inline = settings.get("chat_template")
    if isinstance(inline, str):
        templates["default"] = inline
    elif isinstance(inline, list):
        templates |= {entry["name"]: entry["template"] for entry in inline}
    in_json = read_settings(folder / "chat_template.json").get("chat_template")
    if isinstance(in_json, str):
        templates["default"] = in_json
    for path in [folder / "chat_template.jinja", *folder.glob("additional_chat_templates/*.jinja")]:
        if path.is_file():
            name = "default" if path.name == "chat_template.jinja" else path.stem
            templates[name] = path.read_text(encoding="utf-8")
    return templates
