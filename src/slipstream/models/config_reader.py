"""Reading config.json so that nothing in it that changes the arithmetic goes unnoticed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from slipstream.errors import WeightsError

T = TypeVar("T", int, float, bool, str)

# Fields that say nothing about a forward pass in evaluation mode.
_HARMLESS = frozenset(
    {
        "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "use_cache",
        "initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop",
        "attn_pdrop", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id",
        "unk_token_id", "decoder_start_token_id", "pretraining_tp", "is_llama_config",
        "unsloth_fixed", "unsloth_version", "transformers.js_config", "cache_implementation",
        "id2label", "label2id", "problem_type", "finetuning_task", "task_specific_params",
        "max_length", "min_length", "do_sample", "temperature", "top_k", "top_p", "typical_p",
        "repetition_penalty",
        "num_beams", "num_beam_groups", "num_return_sequences", "length_penalty", "early_stopping",
        "diversity_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
        "return_dict", "chunk_size_feed_forward", "remove_invalid_values", "auto_map", "name",
    }
)  # fmt: skip


class ConfigReader:
    """One config.json, field by field; `finish` refuses fields that nobody asked for.

    Args:
        config: The parsed file.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:  # any JSON
        self._config = config
        self._seen: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self._config.get(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number; absent or null gives the default, without one it is refused."""
        return self._number(name, default, int)

    def number(self, name: str, default: float | None = None) -> float:
        """A number; absent or null gives the default, without one it is refused."""
        return self._number(name, default, float)

    def count(self, name: str, default: int | None = None) -> int:
        """As `integer`, and at least 1: a size, or a number of things."""
        value = self.integer(name, default)
        if value < 1:
            raise self._wrong(name, value, "at least 1")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """As `number`, and finite and above 0."""
        value = self.number(name, default)
        if not 0.0 < value < math.inf:
            raise self._wrong(name, value, "a finite number above 0")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A boolean; absent or null gives the default."""
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        """A string; absent or null gives the default."""
        value = self._take(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of strings, or None where it is absent."""
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, value, "a list of strings")
        return tuple(value)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers, or None where it is absent."""
        value = self._take(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self._wrong(name, value, "a list of whole numbers")
        return tuple(value)

    def section(self, name: str) -> ConfigReader | None:
        """A nested object as a reader of its own, or None where it is absent or empty."""
        value = self._take(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "an object")
        return ConfigReader(value)

    def require(self, name: str, allowed: Any) -> None:  # any JSON value
        """Refuse the field unless it is absent, null or exactly what is supported."""
        value = self._take(name)
        if value is not None and value != allowed:
            raise self._wrong(name, value, f"{allowed!r}, the only supported value")

    def ignore(self, name: str) -> None:
        """Count a field as read although it says nothing about a forward pass."""
        self._seen.add(name)

    def finish(self) -> None:
        """Refuse every field that was not read and could change the arithmetic."""
        for name, value in self._config.items():
            turns_nothing_on = value is None or value is False or value in ({}, [])
            known = name in self._seen or name in _HARMLESS or name.startswith("_")
            if not known and not turns_nothing_on:
                raise WeightsError(
                    f"config.json has {name} = {value!r}, which this model family does not "
                    "support; it could change the model's arithmetic, so it is not ignored",
                    hint="remove the field only if you know that it has no effect",
                )

    def _take(self, name: str) -> Any:  # any JSON value
        self._seen.add(name)
        return self._config.get(name)

    def _number(self, name: str, default: T | None, kind: type[T]) -> T:
        value = self._take(name)
        if value is None:
            if default is None:
                raise WeightsError(f"config.json lacks {name}, which has no default")
            return default
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(name, value, "a number")
        if kind is int and not is_whole:
            raise self._wrong(name, value, "a whole number")
        return kind(value)

    def _wrong(self, name: str, value: Any, allowed: str) -> WeightsError:  # any JSON value
        return WeightsError(f"config.json has {name} = {value!r}; it must be {allowed}")
