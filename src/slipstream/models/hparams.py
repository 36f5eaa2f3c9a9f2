"""The numbers that make one decoder differ from another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipstream.kv.state_storage import StateShape
from slipstream.kv.storage import KvShape

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class RotaryParams:
    """How positions become angles.

    Attributes:
        theta: Base of the frequencies.
        scaling: "linear" divides positions by `factor`; "llama3" divides only the frequencies
            whose wavelength is long against `original_max_positions`; "yarn" those that turn
            seldom within them.
        beta_fast, beta_slow: Turns within the original positions above which "yarn" leaves a
            frequency alone, and below which it divides it wholly.
        amplitude: Factor on cosines and sines.
    """

    theta: float
    scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    amplitude: float = 1.0


@dataclass(frozen=True, slots=True)
class MoeParams:
    """A mixture of experts: each row goes through a few of many small networks.

    Attributes:
        num_experts, num_chosen: All experts of a layer, and those that a row goes through.
        expert_size: Inner width of one expert.
        shared_size: Inner width of the network that every row goes through; 0 = there is none.
        is_shared_gated: The shared network's output is weighed by a sigmoid of the row.
        scoring: What makes weights of the router's logits.
        has_bias: A bias on the weights decides who is chosen, but not how much it weighs.
        num_groups, num_chosen_groups: Experts come in groups of equal size; only those of the best
            groups, by the sum of a group's two best, may be chosen.
        normalises: Chosen weights are divided by their sum.
        weight_scale: Factor on the weights after that.
    """

    num_experts: int
    num_chosen: int
    expert_size: int
    shared_size: int = 0
    is_shared_gated: bool = False
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    has_bias: bool = False
    num_groups: int = 1
    num_chosen_groups: int = 1
    normalises: bool = True
    weight_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class LatentParams:
    """Latent attention: a token's keys and values of all heads follow from one short vector.

    Attributes:
        query_rank: Width of the vector that queries are made of; None = made of the row itself.
        kv_rank: Width of the vector that keys and values are made of.
        nope_dim, rope_dim: Parts of a head's key without and with rotary embedding; the latter is
            one for all heads.
        value_dim: Of one head.
        is_interleaved: Pairs of the rotary part are neighbours, not halves.
    Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1.
    """

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    is_interleaved: bool = True


@dataclass(frozen=True, slots=True)
class DeltaParams:
    """A Gated DeltaNet layer.

    Attributes:
        key_heads, value_heads: The latter a multiple.
        key_dim, value_dim: Of one head.
        kernel_len: Rows that the short convolution sees, the present one included.
        is_interleaved: Its inputs are stored by key head, as Qwen3-Next has them.
        is_tiled: Value heads that share a key head lie `key_heads` apart, as llama.cpp orders
            Qwen3.5's; otherwise they are neighbours.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel_len: int
    is_interleaved: bool
    is_tiled: bool = False

    @property
    def value_size(self) -> int:
        """Width of all value heads together."""
        return self.value_heads * self.value_dim

    @property
    def num_channels(self) -> int:
        """Channels of the convolution: queries, keys, values."""
        return 2 * self.key_heads * self.key_dim + self.value_size

    @property
    def tail_len(self) -> int:
        """Past rows that the convolution needs."""
        return self.kernel_len - 1


@dataclass(frozen=True, slots=True)
class LayerParams:
    """What may differ between the layers of one model.

    Attributes:
        window: A key is visible when query position - key position < window; None = all.
        moe: Experts in place of the dense MLP.
        delta: A recurrent layer in place of attention.
    """

    window: int | None
    rotary: RotaryParams
    moe: MoeParams | None = None
    delta: DeltaParams | None = None


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
        weights_prefix: What the names of the decoder's tensors begin with.
        latent: Attention over latent vectors; `kv_heads` and `head_dim` are then those of what the
            cache keeps: one head of `kv_rank + rope_dim`.
        partial_rotary_dim: Leading values of a head that are rotated; None = all.
        has_output_gate: Each query head comes with a gate on what attention gives.
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
    weights_prefix: str = "model"
    latent: LatentParams | None = None
    partial_rotary_dim: int | None = None
    has_output_gate: bool = False

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layers)

    @property
    def is_plain(self) -> bool:
        """Whether every layer is attention over whole, ungated heads and a dense MLP."""
        is_special = self.latent or self.partial_rotary_dim or self.has_output_gate
        return not is_special and not any(layer.moe or layer.delta for layer in self.layers)

    @property
    def rotary_dim(self) -> int:
        """Leading values of a head that are rotated."""
        if self.latent is not None:
            return self.latent.rope_dim
        return self.partial_rotary_dim or self.head_dim

    @property
    def kv_shape(self) -> KvShape:
        """What the cache keeps."""
        num_layers = sum(layer.delta is None for layer in self.layers)
        return KvShape(num_layers, self.kv_heads, self.head_dim, has_values=self.latent is None)

    @property
    def state_shape(self) -> StateShape | None:
        """What the recurrent layers, which are all alike, remember; None where there are none."""
        recurrent = [layer.delta for layer in self.layers if layer.delta is not None]
        if not recurrent:
            return None
        delta = recurrent[0]
        return StateShape(
            num_layers=len(recurrent),
            num_heads=delta.value_heads,
            value_dim=delta.value_dim,
            key_dim=delta.key_dim,
            num_channels=delta.num_channels,
            tail_len=delta.tail_len,
        )

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together."""
        return self.kv_heads * self.head_dim
