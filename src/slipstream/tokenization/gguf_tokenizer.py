"""A tokenizer from the metadata of a GGUF file.

Source: the GGUF specification (ggml repository, docs/gguf.md) and, where it is silent, what
llama.cpp does with the same keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, models, normalizers

from slipstream.errors import TokenizerError
from slipstream.tokenization.gguf_keys import (
    ADDED_TYPES,
    SPECIAL_TYPES,
    GgufKeys,
    GgufVocabulary,
    Metadata,
    TokenType,
)
from slipstream.tokenization.merges import merges_by_score
from slipstream.tokenization.parts import TokenizerParts
from slipstream.tokenization.pieces import (
    SPACE_MARK,
    PieceReader,
    byte_level_reader,
    sentencepiece_bytes,
)
from slipstream.tokenization.pre_tokenizers import pre_tokenizer_named

# Turn and text ends of the common chat formats: files often name one and leave out the others.
_END_MARKERS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<|end|>",
        "<end_of_turn>",
        "<eos>",
        "</s>",
        "<EOT>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)


def has_vocabulary(metadata: Metadata) -> bool:
    """Whether a GGUF file carries a tokenizer at all; some hold weights only."""
    return GgufKeys(metadata).has("tokens")


def tokenizer_from_gguf(metadata: Metadata) -> TokenizerParts:
    """Build a tokenizer from GGUF metadata.

    Raises:
        TokenizerError: The vocabulary is missing, contradicts itself or needs something unknown.
    """
    keys = GgufKeys(metadata)
    vocabulary = keys.vocabulary()
    kind = keys.text("model")
    if kind == "gpt2":
        return _assemble(keys, vocabulary, _byte_level(keys, vocabulary))
    if kind == "llama":
        return _assemble(keys, vocabulary, _sentencepiece(keys, vocabulary))
    raise TokenizerError(
        f'the file has a vocabulary of the kind "{kind}" (tokenizer.ggml.model); supported are '
        '"gpt2" (byte-level BPE) and "llama" (SentencePiece)',
        hint="use the model's safetensors checkpoint with its tokenizer.json",
    )


@dataclass(frozen=True, slots=True)
class _Splitting:
    """What the two kinds of vocabulary do differently."""

    backend: Tokenizer
    read: PieceReader
    add_bos: bool
    strips_first_space: bool = False


def _byte_level(keys: GgufKeys, vocabulary: GgufVocabulary) -> _Splitting:
    rule = pre_tokenizer_named(keys.text("pre") if keys.has("pre") else "default")
    pairs = [pair.partition(" ") for pair in keys.texts("merges")]
    backend = _backend(
        vocabulary.of_types(TokenType.NORMAL, *ADDED_TYPES),
        [(left, right) for left, _, right in pairs],
        ignore_merges=rule.ignore_merges,
    )
    if rule.is_nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = rule.splitter()
    return _Splitting(backend, byte_level_reader(), rule.add_bos)


def _sentencepiece(keys: GgufKeys, vocabulary: GgufVocabulary) -> _Splitting:
    scores = keys.numbers("scores", len(vocabulary.pieces))
    bytes_by_piece = vocabulary.of_types(TokenType.BYTE)
    pieces = vocabulary.of_types(TokenType.NORMAL)
    # An ASCII letter that exists only as a byte may still be a part of longer pieces (Gemma's tab).
    lone_letters = {
        chr(byte): bytes_by_piece[f"<0x{byte:02X}>"]
        for byte in range(0x80)
        if f"<0x{byte:02X}>" in bytes_by_piece and chr(byte) not in pieces
    }
    merges = merges_by_score(pieces, scores, lone_letters)
    merged = {part for pair in merges for part in pair}
    entries = vocabulary.of_types(TokenType.NORMAL, TokenType.BYTE, *ADDED_TYPES)
    entries |= {letter: lone_letters[letter] for letter in merged & lone_letters.keys()}
    unknown = keys.token_id("unknown", len(vocabulary.pieces))
    backend = _backend(
        entries,
        merges,
        unk_token=None if unknown is None else vocabulary.pieces[unknown],
        fuse_unk=True,
        byte_fallback=bool(bytes_by_piece),
    )
    has_prefix = keys.flag("add_space_prefix", default=True)
    spaces = normalizers.Replace(" ", SPACE_MARK)
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE_MARK), spaces]) if has_prefix else spaces
    )
    return _Splitting(backend, sentencepiece_bytes, add_bos=True, strips_first_space=has_prefix)


def _backend(
    entries: dict[str, int],
    merges: Sequence[tuple[str, str]],
    *,
    ignore_merges: bool = False,
    unk_token: str | None = None,
    fuse_unk: bool = False,
    byte_fallback: bool = False,
) -> Tokenizer:
    try:
        model = models.BPE(
            vocab=entries,
            merges=list(merges),
            ignore_merges=ignore_merges,
            unk_token=unk_token,
            fuse_unk=fuse_unk,
            byte_fallback=byte_fallback,
        )
    except Exception as error:
        raise TokenizerError(
            f"the file's merges do not fit its vocabulary: {error}",
            hint="convert the model again, or use its safetensors checkpoint",
        ) from error
    return Tokenizer(model)


def _assemble(keys: GgufKeys, vocabulary: GgufVocabulary, splitting: _Splitting) -> TokenizerParts:
    _add_tokens(splitting.backend, vocabulary)
    vocab_size = len(vocabulary.pieces)
    bos, eos = keys.token_id("bos", vocab_size), keys.token_id("eos", vocab_size)
    ends = [eos, keys.token_id("eot", vocab_size), keys.token_id("eom", vocab_size)]
    ends += [
        token_id
        for piece, token_id in vocabulary.of_types(TokenType.CONTROL).items()
        if piece in _END_MARKERS
    ]
    names = {"bos_token": bos, "eos_token": eos}
    names |= {"unk_token": keys.token_id("unknown", vocab_size)}
    names |= {"pad_token": keys.token_id("padding", vocab_size)}
    add_bos = keys.flag("add_bos_token", default=splitting.add_bos) and bos is not None
    add_eos = keys.flag("add_eos_token", default=False) and eos is not None
    return TokenizerParts(
        backend=splitting.backend,
        token_bytes=vocabulary.token_bytes(splitting.read),
        special_ids=vocabulary.special_ids(),
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        prefix_ids=(bos,) if add_bos and bos is not None else (),
        suffix_ids=(eos,) if add_eos and eos is not None else (),
        strips_first_space=splitting.strips_first_space,
        named_tokens={
            name: vocabulary.pieces[token_id]
            for name, token_id in names.items()
            if token_id is not None
        },
        chat_templates=keys.chat_templates(),
    )


def _add_tokens(backend: Tokenizer, vocabulary: GgufVocabulary) -> None:
    """Make control and user-defined tokens single ids wherever they stand in a text."""
    special = [piece for piece in vocabulary.of_types(*SPECIAL_TYPES) if piece]
    plain = [piece for piece in vocabulary.of_types(TokenType.USER_DEFINED) if piece]
    backend.add_special_tokens(
        [AddedToken(piece, normalized=False, special=True) for piece in special]
    )
    backend.add_tokens([AddedToken(piece, normalized=False) for piece in plain])
