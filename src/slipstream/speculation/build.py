"""From the section `speculation` to guarded drafters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, assert_never

from slipstream.clock import Clock
from slipstream.config.mtp import MtpConfig
from slipstream.config.speculation import (
    DFlashConfig,
    DrafterConfig,
    DraftModelConfig,
    DraftNetConfig,
    DSparkConfig,
    Eagle3Config,
    NgramConfig,
    ShippedConfig,
    SpeculationConfig,
    SuffixConfig,
)
from slipstream.errors import ConfigError
from slipstream.speculation.drafter import Drafter
from slipstream.speculation.drafters.draft_model.parts import DraftModelParts, DraftModelRules
from slipstream.speculation.drafters.ngram import NgramDrafter, NgramRules
from slipstream.speculation.drafters.suffix.drafter import SuffixDrafter, SuffixRules
from slipstream.speculation.guard import DrafterEvents, GuardedDrafter, GuardLimits
from slipstream.speculation.learned.parts import DraftNetParts, DraftNetRules, MtpParts

Parts = TypeVar("Parts", DraftNetParts, MtpParts)


@dataclass(frozen=True, slots=True)
class DrafterResources:
    """What a drafter may need besides its configuration.

    Attributes:
        vocab_size: Token ids that the target can draw are below it.
        eos_token_ids: Tokens that end an output.
        draft_models, draft_nets: Parts by the name of the instance that needs them.
    """

    vocab_size: int
    eos_token_ids: frozenset[int]
    draft_models: Mapping[str, DraftModelParts]
    draft_nets: Mapping[str, DraftNetParts | MtpParts] = field(default_factory=dict)


def build_drafters(
    config: SpeculationConfig,
    *,
    vocab_size: int,
    eos_token_ids: Collection[int],
    draft_models: Mapping[str, DraftModelParts],
    draft_nets: Mapping[str, DraftNetParts | MtpParts],
    metrics: DrafterEvents,
    clock: Clock,
) -> list[Drafter]:
    """The configured drafters in order, each guarded against its own faults.

    Args:
        vocab_size, eos_token_ids, draft_models, draft_nets: See `DrafterResources`.
        metrics: Is told of faults.

    Raises:
        ConfigError: An instance lacks what it needs.
    """
    resources = DrafterResources(vocab_size, frozenset(eos_token_ids), draft_models, draft_nets)
    limits = GuardLimits(vocab_size=vocab_size)
    return [
        GuardedDrafter(build_drafter(item, resources), limits, clock, metrics)
        for item in config.drafters
    ]


def build_drafter(config: DrafterConfig, resources: DrafterResources) -> Drafter:
    """One drafter, unguarded."""
    match config:
        case NgramConfig():
            return _build_ngram(config, resources)
        case SuffixConfig():
            return _build_suffix(config, resources)
        case DraftModelConfig():
            return _build_draft_model(config, resources)
        case Eagle3Config():
            return _build_eagle3(config, resources)
        case DFlashConfig() | DSparkConfig():
            return _build_block_net(config, resources)
        case MtpConfig():
            return _build_mtp(config, resources)
        case ShippedConfig():
            raise ConfigError(
                "speculation.drafters asks for a shipped drafter, but none was chosen yet",
                hint="Name a drafter's kind and its source.",
            )
    assert_never(config)


def _build_ngram(config: NgramConfig, resources: DrafterResources) -> Drafter:
    rules = NgramRules(
        match=config.match,
        min_n=config.min_n,
        max_n=config.max_n,
        max_draft_len=config.max_draft_len,
        vocab_size=resources.vocab_size,
        eos_token_ids=resources.eos_token_ids,
        cut_at_eos=config.cut_at_eos,
    )
    return NgramDrafter(config.name, rules)


def _build_suffix(config: SuffixConfig, resources: DrafterResources) -> Drafter:
    rules = SuffixRules(
        max_depth=config.max_depth,
        max_cached_requests=config.max_cached_requests,
        max_memory_bytes=config.max_memory_bytes,
        max_text_tokens=config.max_text_tokens,
        max_spec_factor=config.max_spec_factor,
        max_spec_offset=config.max_spec_offset,
        min_token_prob=config.min_token_prob,
        is_tree=config.tree,
        vocab_size=resources.vocab_size,
        eos_token_ids=resources.eos_token_ids,
    )
    return SuffixDrafter(config.name, rules)


def _build_draft_model(config: DraftModelConfig, resources: DrafterResources) -> Drafter:
    # Imported here because it brings torch, which model-free drafters do without.
    from slipstream.speculation.drafters.draft_model.drafter import DraftModelDrafter

    parts = resources.draft_models.get(config.name)
    if parts is None:
        raise ConfigError(
            f'speculation.drafters names "{config.name}" of kind draft_model, but no draft model '
            f"of that name is loaded; loaded are: {', '.join(resources.draft_models) or 'none'}",
            hint="Remove it from speculation.drafters or choose another kind.",
        )
    rules = DraftModelRules(num_children=config.num_children, max_draft_len=config.max_draft_len)
    return DraftModelDrafter(config.name, parts, rules)


def _build_eagle3(config: Eagle3Config, resources: DrafterResources) -> Drafter:
    # Imported here, as the next one, because it brings torch.
    from slipstream.speculation.drafters.eagle3 import Eagle3Drafter

    return Eagle3Drafter(config.name, _net_parts(config, resources), _net_rules(config))


def _build_block_net(config: DraftNetConfig, resources: DrafterResources) -> Drafter:
    from slipstream.speculation.drafters.block_net import BlockNetDrafter

    name = config.name
    return BlockNetDrafter(name, _net_parts(config, resources), _net_rules(config))


def _build_mtp(config: MtpConfig, resources: DrafterResources) -> Drafter:
    from slipstream.speculation.drafters.mtp import MtpDrafter

    rules = DraftNetRules(1, config.max_draft_len, config.min_score)
    return MtpDrafter(config.name, _parts(config.name, MtpParts, resources), rules)


def _net_parts(config: DraftNetConfig, resources: DrafterResources) -> DraftNetParts:
    return _parts(config.name, DraftNetParts, resources)


def _parts(name: str, kind: type[Parts], resources: DrafterResources) -> Parts:
    parts = resources.draft_nets.get(name)
    if not isinstance(parts, kind):
        raise ConfigError(
            f'speculation.drafters names "{name}", but no draft net of that name is '
            f"loaded; loaded are: {', '.join(resources.draft_nets) or 'none'}",
            hint="Remove it from speculation.drafters or choose another kind.",
        )
    return parts


def _net_rules(config: DraftNetConfig) -> DraftNetRules:
    return DraftNetRules(config.num_children, config.max_draft_len, config.min_score)
