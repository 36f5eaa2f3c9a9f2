"""The numbers that make one decoder differ from another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class RotaryParams:
    """How positions become angles.

    Attributes:
        theta: Base of the frequencies.
        scaling: "linear" divides positions by `factor`; "llama3" divides only the frequencies
            whose wavelength is long against `original_max_positions`.
    """

    theta: float
    scaling: Literal["none", "linear", "llama3"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, slots=True)
class LayerParams:
    """What may differ between the layers of one model.

    Attributes:
        window: A key is visible when query position - key position < window; None = all.
    """

    window: int | None
    rotary: RotaryParams


@dataclass(frozen=True, slots=True)
class Hparams:
    """Shape and arithmetic of a decoder, read from its config.json.

    Attributes:
        max_positions: Positions the model was trained for.
        attention_scale: Factor on the dot products of attention.
        qkv_bias, output_bias, mlp_bias: Which projections have a bias.
        has_qk_norm: Queries and keys are normalised per head before rotary embedding.
        is_norm_zero_centred: Norm weights are stored as w - 1.
        has_sandwich_norms: A second norm follows attention and MLP.
        embedding_scale: Factor on the token embeddings, rounded to the model's dtype.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    norm_eps: float
    activation: Activation
    has_tied_embeddings: bool
    attention_scale: float
    layers: tuple[LayerParams, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    has_qk_norm: bool = False
    is_norm_zero_centred: bool = False
    has_sandwich_norms: bool = False
    embedding_scale: float | None = None

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layers)

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together."""
        return self.kv_heads * self.head_dim
