"""Text to token ids and back, exactly, whatever file the vocabulary came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from slipstream.errors import InvalidRequestError, TokenizerError, WeightsError
from slipstream.tokenization.file_tokenizer import tokenizer_from_files
from slipstream.tokenization.gguf_keys import Metadata
from slipstream.tokenization.gguf_tokenizer import has_vocabulary, tokenizer_from_gguf
from slipstream.tokenization.parts import TokenizerParts
from slipstream.weights.gguf_reader import read_gguf


class Tokenizer:
    """A vocabulary with its rules for splitting text.

    Decoding joins the tokens' exact bytes and reads them as UTF-8, with U+FFFD for what is not, so
    that decoding a whole output and decoding it token by token agree.
    """

    def __init__(self, parts: TokenizerParts) -> None:
        self._backend = parts.backend
        self._token_bytes = tuple(parts.token_bytes)
        self._prefix_ids = list(parts.prefix_ids)
        self._suffix_ids = list(parts.suffix_ids)
        self._has_template = parts.has_template
        self.special_ids = parts.special_ids
        self.bos_token_id = parts.bos_token_id
        self.eos_token_ids = parts.eos_token_ids
        self.strips_first_space = parts.strips_first_space
        self.named_tokens = parts.named_tokens
        self.chat_templates = parts.chat_templates
        for token_id in self.eos_token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise TokenizerError(
                    f"the end-of-text token is {token_id}, but the vocabulary has the ids 0 to "
                    f"{self.vocab_size - 1}",
                    hint="correct eos_token_id in generation_config.json or config.json",
                )

    @property
    def vocab_size(self) -> int:
        """Number of ids with a meaning or a place in the vocabulary; a model may have more rows."""
        return len(self._token_bytes)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of `text`; special tokens written out in it become their single ids.

        Args:
            add_special: Put the model's own begin and end tokens around it, as it was trained.
                False for a rendered chat template, which writes them itself.

        Raises:
            InvalidRequestError: `text` holds a lone surrogate, which no UTF-8 text can.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"the text is not valid Unicode: character {error.start} is the lone surrogate "
                f"U+{ord(text[error.start]):04X}; send whole characters"
            ) from error
        has_template = add_special and self._has_template
        # A batch of one: `encode` would keep all other threads waiting, and computes offsets.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=has_template)
        ids: list[int] = encoding.ids
        return [*self._prefix_ids, *ids, *self._suffix_ids] if add_special else ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; byte sequences that are not UTF-8 become U+FFFD.

        Args:
            skip_special: Special tokens give no text; False gives them as they are written.
        """
        data = b"".join(self.visible_bytes(token, skip_special=skip_special) for token in ids)
        if self.strips_first_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of one token (perhaps a part of a character); b"" for padding ids.

        Raises:
            TokenizerError: `token_id` is negative.
        """
        if token_id < 0:
            raise TokenizerError(f"a token id is 0 or more, got {token_id}")
        if token_id >= len(self._token_bytes):
            return b""
        return self._token_bytes[token_id] or b""

    def visible_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        """The bytes that a token gives to the output text."""
        if skip_special and token_id in self.special_ids:
            return b""
        return self.token_bytes(token_id)

    def token_text(self, token_id: int) -> str:
        """One token for a human eye; a part of a character shows as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def fingerprint_items(self) -> Sequence[bytes | None]:
        """Bytes of each id in order, None for padding: two equal sequences, one vocabulary."""
        return self._token_bytes


def load_tokenizer(path: Path, gguf_metadata: Metadata | None = None) -> Tokenizer:
    """The tokenizer of the checkpoint at `path`, a folder or a weights file.

    A GGUF file's own vocabulary comes first; every other checkpoint has a tokenizer.json.

    Args:
        gguf_metadata: Of the GGUF file that `path` is or holds, where it was read before.
    Raises:
        TokenizerError: There is none, or it is broken or of a kind that is not supported.
    """
    tokenizer = find_tokenizer(path, gguf_metadata)
    if tokenizer is not None:
        return tokenizer
    gguf_path = _gguf_file(path)
    raise TokenizerError(
        f"{path} has no tokenizer: there is no {_folder_of(path) / 'tokenizer.json'}"
        + ("" if gguf_path is None else f", and {gguf_path.name} holds weights only"),
        hint="a tokenizer.model alone is not read; save the tokenizer as tokenizer.json",
    )


def find_tokenizer(path: Path, gguf_metadata: Metadata | None = None) -> Tokenizer | None:
    """As `load_tokenizer`; None where the checkpoint has none, as many drafters have none."""
    gguf_path = _gguf_file(path)
    if gguf_path is not None:
        metadata = gguf_metadata or _read_metadata(gguf_path)
        if has_vocabulary(metadata):
            return Tokenizer(tokenizer_from_gguf(metadata))
    folder = _folder_of(path)
    if (folder / "tokenizer.json").is_file():
        return Tokenizer(tokenizer_from_files(folder))
    return None


def _folder_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _read_metadata(path: Path) -> Metadata:
    try:
        return read_gguf(path).metadata
    except WeightsError as error:
        raise TokenizerError(
            f"no tokenizer from {path}: {error.message}", hint=error.hint
        ) from error


def _gguf_file(path: Path) -> Path | None:
    """The GGUF file that `path` is, or the only one in a folder that has no config.json."""
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    found = sorted(path.glob("*.gguf"))
    return found[0] if len(found) == 1 and not (path / "config.json").exists() else None
