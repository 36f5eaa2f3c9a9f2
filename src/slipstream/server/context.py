"""What the service is made of, passed to whoever needs it."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.clock import Clock
from slipstream.config.server import ServerConfig
from slipstream.engine.client import EngineClient
from slipstream.engine.messages import EngineInfo
from slipstream.errors import EngineUnavailableError, ModelNotFoundError
from slipstream.observability.api_metrics import ApiMetrics
from slipstream.protocol.errors import shown
from slipstream.server.lifecycle import Lifecycle


class TextCodec(Protocol):
    """What the service needs of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_ids(self) -> Collection[int]: ...

    def encode(self, text: str, *, add_special: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def token_text(self, token_id: int) -> str: ...


class PromptTemplate(Protocol):
    """What the service needs of a chat template."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],  # Any: what the template understands
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class Service:
    """One model behind one HTTP front.

    Attributes:
        model: The name that requests must give.
        template: None when the model has none; chat is refused then.
        rng: Source of seeds and ids.
        api_keys: Accepted keys; empty switches authentication off.
    """

    config: ServerConfig
    model: str
    engine: EngineClient
    tokenizer: TextCodec
    template: PromptTemplate | None
    metrics: ApiMetrics
    lifecycle: Lifecycle
    clock: Clock
    rng: random.Random
    version: str
    api_keys: frozenset[str] = frozenset()

    def ready_info(self) -> EngineInfo:
        """The engine's facts, if it takes requests now.

        Raises:
            EngineUnavailableError: It does not.
        """
        info = self.engine.info
        if info is None or not self.engine.is_ready:
            raise EngineUnavailableError(
                f"the engine is {self.engine.state}; try again when /ready answers 200"
            )
        return info

    def check_model(self, model: str) -> None:
        """Refuse a request for another model.

        Raises:
            ModelNotFoundError: `model` is not the served one.
        """
        if model != self.model:
            raise ModelNotFoundError(
                f"the model {shown(model)} is not served here; served is {shown(self.model)}",
                param="model",
            )

    def new_id(self, prefix: str) -> str:
        """A fresh id such as `chatcmpl-4f...`."""
        return f"{prefix}-{self.rng.getrandbits(128):032x}"
