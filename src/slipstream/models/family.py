"""What all families of decoders read from config.json in the same way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from slipstream.errors import WeightsError
from slipstream.models.config_reader import ConfigReader
from slipstream.models.hparams import Activation, Hparams, LayerParams, RotaryParams

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh": "gelu_tanh",
}


def activation_name(activation: Activation) -> str:
    """How config.json spells it."""
    return next(name for name, kind in _ACTIVATIONS.items() if kind == activation)


@dataclass(frozen=True, slots=True)
class Family:
    """A family of checkpoints that one function can read.

    Attributes:
        model_type, architecture: As config.json spells them.
        read: Makes hyperparameters of a config.json.
    """

    model_type: str
    architecture: str
    read: Callable[[ConfigReader], Hparams]


def read_decoder(
    config: ConfigReader,
    family: str,
    layers: tuple[LayerParams, ...],
    *,
    ties_embeddings: bool = False,
    activation_field: str = "hidden_act",
    intermediate_size: int | None = None,
) -> Hparams:
    """The fields that every family has; a family changes the rest with `dataclasses.replace`.

    Args:
        ties_embeddings: The family's default where config.json does not say.
        intermediate_size: The same, of the dense MLP; None refuses to guess.
    """
    hidden_size = config.count("hidden_size")
    num_heads = config.count("num_attention_heads")
    kv_heads = config.count("num_key_value_heads", num_heads)
    head_dim = config.count("head_dim", hidden_size // num_heads)
    if num_heads % kv_heads or head_dim % 2:
        raise WeightsError(
            f"config.json has num_attention_heads = {num_heads}, num_key_value_heads = {kv_heads} "
            f"and head_dim = {head_dim}; heads must be a multiple of key heads and head_dim even"
        )
    activation = config.text(activation_field, "silu")
    if activation not in _ACTIVATIONS:
        raise WeightsError(
            f"config.json has {activation_field} = {activation!r}; supported are "
            f"{', '.join(sorted(_ACTIVATIONS))}"
        )
    return Hparams(
        family=family,
        vocab_size=config.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.count("intermediate_size", intermediate_size),
        num_heads=num_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_positions=config.count("max_position_embeddings"),
        norm_eps=config.positive("rms_norm_eps", 1e-6),
        activation=_ACTIVATIONS[activation],
        has_tied_embeddings=config.flag("tie_word_embeddings", ties_embeddings),
        attention_scale=head_dim**-0.5,
        layers=layers,
    )


def read_partial_rotary(config: ConfigReader, head_dim: int, default: float) -> int | None:
    """Leading values of a head that are rotated; None = all."""
    factor = config.positive("partial_rotary_factor", default)
    section = config.section("rope_parameters")
    if section is not None:
        factor = section.positive("partial_rotary_factor", factor)
    rotated = int(head_dim * factor)
    if rotated % 2 or not 0 < rotated <= head_dim:
        raise WeightsError(
            f"config.json has partial_rotary_factor = {factor} of head_dim = {head_dim}; it must "
            "leave an even number of rotated values"
        )
    return None if rotated == head_dim else rotated


def read_rotary(
    config: ConfigReader, default_theta: float = 10000.0, *, allows_partial: bool = False
) -> RotaryParams:
    """Rotary parameters: `rope_parameters`, or `rope_theta` with an optional `rope_scaling`.

    Args:
        allows_partial: The family reads `partial_rotary_factor` by itself.
    """
    if not allows_partial:
        config.require("partial_rotary_factor", 1.0)
    theta = config.positive("rope_theta", default_theta)
    for name in ("rope_parameters", "rope_scaling"):
        section = config.section(name)
        if section is not None:
            if allows_partial:
                for field in ("partial_rotary_factor", "mrope_section", "mrope_interleaved"):
                    section.ignore(field)  # for text all axes of positions are one
            else:
                section.require("partial_rotary_factor", 1.0)
            return read_rotary_section(section, name, theta, config)
    return RotaryParams(theta)


def read_rotary_section(
    section: ConfigReader, name: str, theta: float, config: ConfigReader
) -> RotaryParams:
    """One object with `rope_type` and its numbers; unsupported types are refused by name."""
    theta = section.positive("rope_theta", theta)
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "default":
        params = RotaryParams(theta)
    elif kind == "linear":
        params = RotaryParams(theta, "linear", section.positive("factor"))
    elif kind == "llama3":
        trained = config.count("max_position_embeddings")
        params = RotaryParams(
            theta,
            "llama3",
            section.positive("factor"),
            section.positive("low_freq_factor"),
            section.positive("high_freq_factor"),
            section.count("original_max_position_embeddings", trained),
        )
    elif kind == "yarn":
        params = _read_yarn(section, theta, config)
    else:
        raise WeightsError(
            f"config.json has {name} of type {kind!r}; supported are default, linear, llama3 and "
            "yarn"
        )
    section.finish()
    return params


def _read_yarn(section: ConfigReader, theta: float, config: ConfigReader) -> RotaryParams:
    section.require("truncate", True)
    factor = section.positive("factor")
    scales = [section.number(name, 0.0) for name in ("mscale", "mscale_all_dim")]
    amplitude = yarn_scale(factor)
    if all(scales):
        amplitude = yarn_scale(factor, scales[0]) / yarn_scale(factor, scales[1])
    return RotaryParams(
        theta,
        "yarn",
        factor,
        original_max_positions=section.count(
            "original_max_position_embeddings", config.count("max_position_embeddings")
        ),
        beta_fast=section.positive("beta_fast", 32.0),
        beta_slow=section.positive("beta_slow", 1.0),
        amplitude=section.positive("attention_factor", amplitude),
    )


def yarn_scale(factor: float, mscale: float = 1.0) -> float:
    """What YaRN multiplies queries and keys with when it stretches positions by `factor`."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def read_layers(
    config: ConfigReader,
    full: LayerParams,
    sliding: LayerParams,
    is_sliding: Callable[[int], bool],
) -> tuple[LayerParams, ...]:
    """One entry per layer, by `layer_types` or else by the family's own rule."""
    num_layers = config.count("num_hidden_layers")
    types = config.texts("layer_types")
    if types is None:
        return tuple(sliding if is_sliding(layer) else full for layer in range(num_layers))
    kinds = {"full_attention": full, "sliding_attention": sliding}
    if len(types) != num_layers or not set(types) <= set(kinds):
        raise WeightsError(
            f"config.json has layer_types {sorted(set(types))} for {len(types)} layers; it must "
            f"name {num_layers} layers, each full_attention or sliding_attention"
        )
    if sliding.window is None and "sliding_attention" in types:
        raise WeightsError("config.json has sliding layers in layer_types but no sliding_window")
    return tuple(kinds[kind] for kind in types)
