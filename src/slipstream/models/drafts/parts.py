"""Building blocks of the draft nets: plain differentiable torch, any leading axes.

Nothing here is written in place, so that the nets that serve are those that are trained. Products
have the type of their weights; everything between them is float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from slipstream.models.hparams import Activation, Hparams, RotaryParams
from slipstream.models.layers.activation import ACTIVATIONS
from slipstream.models.layers.embedding import PackedEnds
from slipstream.models.layers.rotary import RotaryTable


class TokenEnds(Protocol):
    """The target's first and last matrix, where a draft net has none of its own."""

    def embed(self, tokens: Tensor) -> Tensor:
        """[...] int64 -> [..., hidden] float32."""

    def head(self, hidden: Tensor) -> Tensor:
        """[..., hidden] float32, behind the final norm -> [..., vocab] float32."""

    def packed(self) -> PackedEnds | None:
        """The same in native kernels; None where they do not have it."""


@dataclass(frozen=True, slots=True)
class StoredEnds:
    """See `TokenEnds`.

    Attributes:
        embeddings, vocabulary: [vocab, hidden]; the same tensor where the two are tied.
    """

    embeddings: Tensor
    vocabulary: Tensor

    def embed(self, tokens: Tensor) -> Tensor:
        """See `TokenEnds`."""
        return functional.embedding(tokens, self.embeddings).float()

    def head(self, hidden: Tensor) -> Tensor:
        """See `TokenEnds`."""
        return functional.linear(hidden.to(self.vocabulary.dtype), self.vocabulary).float()

    def packed(self) -> PackedEnds | None:
        """See `TokenEnds`."""
        return None


class Products(Protocol):
    """How matrices are multiplied; a net for serving may pack them first.

    Attributes:
        num_bytes: Of the matrices that it holds itself.
    """

    num_bytes: int

    def __call__(self, name: str, x: Tensor) -> Tensor:
        """[..., num_in] float32 -> x W^T + b, [..., num_out] float32.

        Args:
            name: The weight is the parameter `name`.weight, the bias `name`.bias if there is one.
        """

    def rows(self, name: str, indices: Tensor) -> Tensor:
        """Rows of the parameter `name`.weight: [...] int64 -> [..., num_in] float32."""


class Attend(Protocol):
    """How rows attend; `attend` is exact, a trainer may take a faster one."""

    def __call__(
        self,
        queries: Tensor,
        context: LayerKv,
        context_visible: Tensor,
        own: LayerKv,
        own_visible: Tensor,
        scale: float,
    ) -> Tensor:
        """See `attend`."""


class TorchProducts:
    """See `Products`: differentiable, on the parameters as they are now."""

    num_bytes = 0

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters

    def __call__(self, name: str, x: Tensor) -> Tensor:
        """See `Products`."""
        weight = self._parameters[f"{name}.weight"]
        bias = self._parameters.get(f"{name}.bias")
        return functional.linear(x.to(weight.dtype), weight, bias).float()

    def rows(self, name: str, indices: Tensor) -> Tensor:
        """See `Products`."""
        return functional.embedding(indices, self._parameters[f"{name}.weight"]).float()


@dataclass(frozen=True, slots=True)
class LayerKv:
    """Keys, after rotary embedding, and values of one draft layer: [..., kv_heads, head_dim]."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Context:
    """What rows attend to besides rows of their own block.

    Attributes:
        layers: Keys and values [batch, len, kv_heads, head_dim] by draft layer.
        positions: [batch, len] int64.
        is_visible: [batch, blocks, len] bool: which of it a block may see, windows apart.
    """

    layers: Sequence[LayerKv]
    positions: Tensor
    is_visible: Tensor

    def visible_to(self, positions: Tensor, window: int | None) -> Tensor:
        """[batch, blocks, rows, len] bool for rows at `positions` [batch, blocks, rows]."""
        visible = self.is_visible.unsqueeze(2).expand(*positions.shape, -1)
        if window is None:
            return visible
        distance = positions.unsqueeze(-1) - self.positions[:, None, None, :]
        return visible & (distance < window)


def empty_context(body: Hparams, batch: int, blocks: int) -> Context:
    """A context without positions."""
    nothing = torch.empty(batch, 0, body.kv_heads, body.head_dim)
    layers = [LayerKv(nothing, nothing)] * body.num_layers
    positions = torch.empty(batch, 0, dtype=torch.int64)
    return Context(layers, positions, torch.empty(batch, blocks, 0, dtype=torch.bool))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · w over the last axis, in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def attend(
    queries: Tensor,  # [batch, blocks, rows, heads, head_dim]
    context: LayerKv,  # [batch, len, kv_heads, head_dim]
    context_visible: Tensor,  # [batch, blocks, rows, len] bool
    own: LayerKv,  # [batch, blocks, own, kv_heads, head_dim]
    own_visible: Tensor,  # [..., rows, own] bool, broadcast over the leading axes
    scale: float,
) -> Tensor:
    """Attend to a context that blocks share and to rows of one's own block.

    Every row must see something. Returns: [batch, blocks, rows, heads * head_dim] float32.
    """
    batch, blocks, rows, heads, head_dim = queries.shape
    grouped = queries.view(batch, blocks, rows, own.keys.shape[-2], -1, head_dim)
    context_len = context.keys.shape[1]
    scores = torch.cat(
        (
            torch.einsum("bnrkgd,bskd->bnkgrs", grouped, context.keys.float()),
            torch.einsum("bnrkgd,bnokd->bnkgro", grouped, own.keys.float()),
        ),
        -1,
    )
    own_visible = own_visible.expand(batch, blocks, rows, -1)
    visible = torch.cat((context_visible, own_visible), -1)[:, :, None, None]
    weights = (scores * scale).masked_fill(~visible, -math.inf).softmax(-1)
    of_context, of_own = weights[..., :context_len], weights[..., context_len:]
    mixed = torch.einsum("bnkgrs,bskd->bnrkgd", of_context, context.values.float())
    mixed = mixed + torch.einsum("bnkgro,bnokd->bnrkgd", of_own, own.values.float())
    return mixed.reshape(batch, blocks, rows, heads * head_dim)


class DraftRotary:
    """Rotary embedding for rows with any leading axes."""

    def __init__(self, body: Hparams) -> None:
        self._tables = {
            layer.rotary: RotaryTable(layer.rotary, body.head_dim) for layer in body.layers
        }

    def table(self, params: RotaryParams) -> RotaryTable:
        """Angles by position."""
        return self._tables[params]

    def rotate(self, x: Tensor, params: RotaryParams, positions: Tensor) -> Tensor:
        """Rotate [..., heads, head_dim] float32 to `positions` [...]."""
        if positions.numel() == 0:
            return x
        flat = positions.flatten()
        cos, sin = self._tables[params].angles(flat.cpu(), int(flat.max()))
        shape = (*positions.shape, 1, x.shape[-1])
        cos, sin = cos.view(shape).to(x.device), sin.view(shape).to(x.device)
        return x * cos + torch.roll(x, x.shape[-1] // 2, -1) * sin


def gated_mlp(products: Products, prefix: str, x: Tensor, activation: Activation) -> Tensor:
    """down(activation(gate(x)) * up(x)) of the parameters below `prefix`.mlp."""
    gate = ACTIVATIONS[activation](products(f"{prefix}.mlp.gate_proj", x))
    return products(f"{prefix}.mlp.down_proj", gate * products(f"{prefix}.mlp.up_proj", x))


def layer_shapes(body: Hparams, index: int, num_in: int) -> dict[str, tuple[int, ...]]:
    """Parameters of one layer, its two usual norms included, by name.

    Args:
        num_in: Width of what queries, keys and values are made of.
    """
    prefix, hidden = f"layers.{index}", body.hidden_size
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    outs = {"q_proj": body.q_size, "k_proj": body.kv_size, "v_proj": body.kv_size}
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}.input_layernorm.weight": (hidden,),
        f"{prefix}.post_attention_layernorm.weight": (hidden,),
        **{f"{attention}.{name}.weight": (rows, num_in) for name, rows in outs.items()},
        f"{attention}.o_proj.weight": (hidden, body.q_size),
        f"{mlp}.gate_proj.weight": (body.intermediate_size, hidden),
        f"{mlp}.up_proj.weight": (body.intermediate_size, hidden),
        f"{mlp}.down_proj.weight": (hidden, body.intermediate_size),
    }
    if body.has_qk_norm:
        shapes[f"{attention}.q_norm.weight"] = (body.head_dim,)
        shapes[f"{attention}.k_norm.weight"] = (body.head_dim,)
    if body.qkv_bias:
        shapes |= {f"{attention}.{name}.bias": (rows,) for name, rows in outs.items()}
    if body.output_bias:
        shapes[f"{attention}.o_proj.bias"] = (hidden,)
    return shapes
