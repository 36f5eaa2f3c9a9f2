"""Request fields that come in more than one shape."""

from __future__ import annotations

import math
import re

from slipstream.errors import InvalidRequestError
from slipstream.protocol.errors import shown

Prompt = str | tuple[int, ...]

MAX_STOP_STRINGS = 16
MAX_LOGIT_BIAS = 1024
_MAX_TOKEN_ID = 2**31 - 1
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)  # one spelling each


def parse_prompt(value: object) -> tuple[Prompt, ...]:
    """One prompt, or several: text, list of texts, token ids, list of token id lists."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise InvalidRequestError(
            "prompt must be a string, a list of strings, a list of token ids or a list of such "
            f"lists, and not empty; got {shown(value)}",
            param="prompt",
        )
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if all(isinstance(item, list) for item in value):
        return tuple(_token_ids(item, f"prompt[{i}]") for i, item in enumerate(value))
    return (_token_ids(value, "prompt"),)


def _token_ids(value: list[object], where: str) -> tuple[int, ...]:
    for i, item in enumerate(value):
        if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item <= _MAX_TOKEN_ID:
            raise InvalidRequestError(
                f"{where}[{i}] must be a token id, got {shown(item)}", param="prompt"
            )
    return tuple(item for item in value if isinstance(item, int))


def parse_stop(value: object) -> tuple[str, ...]:
    """A stop string, or up to 16 of them."""
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise InvalidRequestError(
            f"stop must be a string or a list of strings, got {shown(value)}", param="stop"
        )
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidRequestError(
            f"stop holds at most {MAX_STOP_STRINGS} strings, got {len(stops)}", param="stop"
        )
    return tuple(stops)


def parse_logit_bias(value: object) -> dict[int, float]:
    """Token id, written as a JSON key, to bias."""
    if not isinstance(value, dict):
        raise InvalidRequestError(
            f"logit_bias must be an object of token id to number, got {shown(value)}",
            param="logit_bias",
        )
    if len(value) > MAX_LOGIT_BIAS:
        raise InvalidRequestError(
            f"logit_bias holds at most {MAX_LOGIT_BIAS} tokens, got {len(value)}",
            param="logit_bias",
        )
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not _TOKEN_ID.fullmatch(key):
            raise InvalidRequestError(
                f'logit_bias: keys are token ids such as "50256", got {shown(key)}',
                param="logit_bias",
            )
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not is_number or not _is_finite(bias):
            raise InvalidRequestError(
                f"logit_bias[{key}] must be a finite number, got {shown(bias)}", param="logit_bias"
            )
        biases[int(key)] = float(bias)
    return biases


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond any float
        return False
