"""What a request may ask of the sampler."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slipstream.errors import InvalidRequestError

MAX_TOP_LOGPROBS = 20
SEED_BITS = 64
MIN_TEMPERATURE = 1e-5
MAX_STOP_CHARS = 1024


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stopping parameters of one request, validated at construction.

    Attributes:
        temperature: 0 is greedy; above 0 the logits are divided by it. Below `MIN_TEMPERATURE`
            it is taken as 0: the best token would win all the same.
        top_p, top_k, min_p: Filters; 1.0, 0 and 0.0 switch them off.
        repetition_penalty: Over prompt and output tokens, as in CTRL; 1.0 is off.
        presence_penalty, frequency_penalty: Over output tokens, as in the OpenAI API; 0.0 is off.
        logit_bias: Token id -> added to its logit.
        bad_words: Strings that the output never contains, nor completes where the prompt ends with
            their beginning. The text's bytes count, not how tokens cut them.
        allowed_token_ids: If given, no other token can be drawn.
        max_tokens: Most output tokens; at least 1.
        min_tokens: EOS and stop tokens cannot be drawn before this many output tokens.
        ignore_eos: EOS does not end the output (it can still be drawn).
        stop: Strings that end the output, of at most `MAX_STOP_CHARS` characters each.
        stop_token_ids: Tokens that end the output.
        include_stop: Keep the stop string in the text.
        seed: Seed of the noise, 64 bits.
        logprobs: Report the log-probability of each output token.
        top_logprobs: How many alternatives to report with it.
        prompt_logprobs: Report log-probabilities of the prompt tokens.
        logprobs_mode: `raw` is the model's own distribution, `processed` is after processors,
            temperature and filters.

    Raises:
        InvalidRequestError: A value is outside its range; names the field.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    max_tokens: int = 256
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    seed: int = 0
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    logprobs_mode: str = "raw"

    def __post_init__(self) -> None:
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _in_range("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("repetition_penalty", self.repetition_penalty, 0.0, 100.0, low_open=True)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _in_range("top_k", self.top_k, 0, math.inf)
        _in_range("max_tokens", self.max_tokens, 1, math.inf)
        _in_range("min_tokens", self.min_tokens, 0, self.max_tokens)
        _in_range("top_logprobs", self.top_logprobs, 0, MAX_TOP_LOGPROBS)
        _in_range("seed", self.seed, 0, 2**SEED_BITS - 1)
        for token, bias in self.logit_bias.items():
            _in_range(f"logit_bias[{token}]", bias, -100.0, 100.0)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequestError(
                "allowed_token_ids must name at least one token, got an empty list",
                param="allowed_token_ids",
            )
        _check_bad_words(self.bad_words)
        if any(not text for text in self.stop):
            raise InvalidRequestError("stop holds an empty string", param="stop")
        longest = max(map(len, self.stop), default=0)
        if longest > MAX_STOP_CHARS:
            raise InvalidRequestError(
                f"a stop string has at most {MAX_STOP_CHARS} characters, got one of {longest}",
                param="stop",
            )
        if self.logprobs_mode not in ("raw", "processed"):
            raise InvalidRequestError(
                f'logprobs_mode must be "raw" or "processed", got "{self.logprobs_mode}"',
                param="logprobs_mode",
            )

    @property
    def is_greedy(self) -> bool:
        return self.temperature < MIN_TEMPERATURE

    @property
    def has_penalties(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def needs_state(self) -> bool:
        """Whether a row's distribution depends on the tokens drawn before it."""
        return (
            self.has_penalties
            or self.min_tokens > 0
            or any(len(word.encode()) > 1 for word in self.bad_words)
        )


def check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Refuse parameters that name a token outside the vocabulary.

    Raises:
        InvalidRequestError: Names the field, the token and the range.
    """
    named: dict[str, Iterable[int]] = {
        "logit_bias": params.logit_bias,
        "allowed_token_ids": params.allowed_token_ids or (),
        "stop_token_ids": params.stop_token_ids,
    }
    for name, tokens in named.items():
        for token in tokens:
            if not 0 <= token < vocab_size:
                raise InvalidRequestError(
                    f"{name} names token {token}, but this model's tokens are 0 to "
                    f"{vocab_size - 1}",
                    param=name,
                )


def _check_bad_words(words: Iterable[object]) -> None:
    """Refuse what no text can be compared with.

    Raises:
        InvalidRequestError: Says which word.
    """
    if isinstance(words, str):
        raise InvalidRequestError(
            f"bad_words takes several strings, got the one string {words!r}",
            param="bad_words",
            hint=f"write ({words!r},)",
        )
    for word in words:
        if not isinstance(word, str):
            raise InvalidRequestError(
                f"bad_words takes strings, got {word!r}; sequences of token ids are not taken, "
                "since other tokens can give the same text",
                param="bad_words",
                hint="give the text of the word",
            )
        if not word:
            raise InvalidRequestError("bad_words holds an empty word", param="bad_words")
        if "\ufffd" in word or any("\ud800" <= letter <= "\udfff" for letter in word):
            raise InvalidRequestError(
                f"bad_words holds {word!r}, which has U+FFFD or a lone surrogate; they stand for "
                "bytes that are no text and cannot be looked for",
                param="bad_words",
            )


def _in_range(name: str, value: float, low: float, high: float, *, low_open: bool = False) -> None:
    is_low = value <= low if low_open else value < low
    if math.isnan(value) or is_low or value > high:
        least = f"above {_written(low)}" if low_open else f"at least {_written(low)}"
        most = "" if high == math.inf else f" and at most {_written(high)}"
        field_name = name.split("[", maxsplit=1)[0]
        raise InvalidRequestError(
            f"{name} must be {least}{most}, got {_written(value)}", param=field_name
        )


def _written(value: float) -> str:
    """Whole numbers with all their digits: a seed has 20."""
    return str(value) if isinstance(value, int) else f"{value:g}"
