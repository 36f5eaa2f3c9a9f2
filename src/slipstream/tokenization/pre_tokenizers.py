"""How each known byte-level vocabulary cuts text into words before merging.

A GGUF file only names its rule (`tokenizer.ggml.pre`). The rules are those of the models' own
tokenizer.json files; names and groups follow llama.cpp's `llama-vocab.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from slipstream.errors import TokenizerError

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_WORDS = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
)
_QWEN2_WORDS = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
)
_QWEN35_WORDS = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    + _SPACES
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
)
_GPT4O_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
)
_DEEPSEEK3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One rule, under all its names.

    Attributes:
        patterns: Each cuts the pieces that the ones before left, and keeps what lies between.
        ignore_merges: A word that is a token as a whole is taken without merging.
        add_bos: A text starts with the begin token unless the file says otherwise.
        is_nfc: The text is brought to Unicode normal form C first.
    """

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    is_nfc: bool = False

    def splitter(self) -> pre_tokenizers.PreTokenizer:
        """The rule for the `tokenizers` library, the byte alphabet last."""
        splits = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns
        ]
        alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, alphabet])


_RULES = (
    PreTokenizer(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4"), (GPT2_WORDS,)),
    PreTokenizer(
        ("default",),
        (r"[\p{P}\$\+<=>\^~\|]+", GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"),
    ),
    PreTokenizer(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        (r"\p{N}", GPT2_WORDS),
    ),
    PreTokenizer(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "pixtral"),
        (_LLAMA3_WORDS,),
        ignore_merges=True,
        add_bos=True,
    ),
    PreTokenizer(("dbrx", "smaug-bpe", "chatglm-bpe"), (_LLAMA3_WORDS,)),
    PreTokenizer(("glm4",), (_LLAMA3_WORDS,), ignore_merges=True),
    PreTokenizer(("qwen2", "deepseek-r1-qwen", "megrez"), (_QWEN2_WORDS,), is_nfc=True),
    PreTokenizer(("stablelm2", "hunyuan"), (_QWEN2_WORDS,)),
    PreTokenizer(("qwen35",), (_QWEN35_WORDS,), is_nfc=True),
    PreTokenizer(("tekken",), (_TEKKEN_WORDS,), ignore_merges=True, add_bos=True),
    PreTokenizer(("gpt-4o", "llama4"), (_GPT4O_WORDS,)),
    PreTokenizer(
        ("deepseek-coder",),
        (
            r"[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
            r"\p{N}",
        ),
    ),
    PreTokenizer(
        ("deepseek-v3", "hunyuan-dense"),
        (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3_WORDS),
    ),
)


def pre_tokenizer_names() -> tuple[str, ...]:
    """Every name that `pre_tokenizer_named` knows, sorted."""
    return tuple(sorted(name for rule in _RULES for name in rule.names))


def pre_tokenizer_name(patterns: tuple[str, ...]) -> str:
    """What a GGUF file calls a rule with these patterns; `default` where it has no name for it."""
    return next((rule.names[0] for rule in _RULES if rule.patterns == patterns), "default")


def pre_tokenizer_named(name: str) -> PreTokenizer:
    """The rule that a GGUF file calls `name`.

    Raises:
        TokenizerError: The name is unknown; the message lists those that are known.
    """
    for rule in _RULES:
        if name in rule.names:
            return rule
    raise TokenizerError(
        f'the file asks for the pre-tokenizer "{name}" (tokenizer.ggml.pre), which is not '
        f"supported; supported are {', '.join(pre_tokenizer_names())}",
        hint="use the model's safetensors checkpoint, whose tokenizer.json spells the rule out",
    )
