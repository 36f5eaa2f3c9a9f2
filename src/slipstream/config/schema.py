"""The whole configuration: one frozen class per section, every field with a default that works."""

from __future__ import annotations

from pydantic import Field

from slipstream.config.engine import EngineConfig
from slipstream.config.memory import MemoryConfig
from slipstream.config.model import ModelConfig
from slipstream.config.observability import ObservabilityConfig
from slipstream.config.scheduler import SchedulerConfig
from slipstream.config.section import Section
from slipstream.config.server import ServerConfig
from slipstream.config.speculation import SpeculationConfig


class Config(Section):
    """Everything that can be set. `slipstream.config.load` builds it from all sources."""

    model: ModelConfig = Field(default=ModelConfig(), description="The target.")
    memory: MemoryConfig = Field(default=MemoryConfig(), description="The memory budget.")
    scheduler: SchedulerConfig = Field(
        default=SchedulerConfig(), description="The batch and the queue."
    )
    speculation: SpeculationConfig = Field(
        default=SpeculationConfig(), description="Drafting and verification."
    )
    engine: EngineConfig = Field(default=EngineConfig(), description="The engine process.")
    server: ServerConfig = Field(default=ServerConfig(), description="The HTTP side.")
    observability: ObservabilityConfig = Field(default=ObservabilityConfig(), description="Logs.")
