"""What all draft nets share: parameters by name, projections of a layer, the two ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import torch
from torch import Tensor

from slipstream.models.drafts.hparams import DraftHparams
from slipstream.models.drafts.parts import (
    Attend,
    DraftRotary,
    LayerKv,
    Products,
    TokenEnds,
    TorchProducts,
    attend,
    layer_shapes,
    rms_norm,
)

H = TypeVar("H", bound=DraftHparams)


class DraftNet(Generic[H]):
    """Base of the draft nets. Serving and training use the same methods.

    A trainer optimises the tensors of `parameters`; it may also build a net anew around other
    tensors of the same names in every step, since that costs nothing.

    Args:
        hparams: Shape and arithmetic; its taps are resolved.
        parameters: Name -> tensor, exactly those of `parameter_shapes` that `products` does not
            hold.
        ends: The target's embeddings and head, for what the net does not have itself.
        draft_token_ids: [draft_vocab] int64 target id of each token of a reduced vocabulary;
            None where the draft knows all tokens.
        products: How matrices are multiplied; None is plain torch.
        attention: How rows attend; None is plain torch.
    """

    def __init__(
        self,
        hparams: H,
        parameters: Mapping[str, Tensor],
        ends: TokenEnds,
        draft_token_ids: Tensor | None = None,
        products: Products | None = None,
        attention: Attend | None = None,
    ) -> None:
        self.hparams = hparams
        self.parameters = parameters
        self.ends = ends
        self.draft_token_ids = draft_token_ids
        self.products: Products = products or TorchProducts(parameters)
        self.attend: Attend = attention or attend
        self.rotary = DraftRotary(hparams.body)

    @classmethod
    def parameter_shapes(cls, hparams: H) -> dict[str, tuple[int, ...]]:
        """Every parameter's shape by its name, which is that of the published checkpoints."""
        body = hparams.body
        shapes: dict[str, tuple[int, ...]] = {
            "fc.weight": (body.hidden_size, hparams.num_taps * hparams.target_hidden_size),
            "norm.weight": (body.hidden_size,),
        }
        if hparams.has_own_embeddings:
            shapes["embed_tokens.weight"] = (body.vocab_size, body.hidden_size)
        if hparams.has_own_head:
            shapes["lm_head.weight"] = (hparams.draft_vocab_size, body.hidden_size)
        for index in range(body.num_layers):
            shapes |= layer_shapes(body, index, cls._layer_width(hparams, index))
        return shapes

    @classmethod
    def _layer_width(cls, hparams: H, index: int) -> int:
        """Width of what layer `index` makes queries, keys and values of."""
        return hparams.body.hidden_size

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters."""
        return self.products.num_bytes + sum(item.nbytes for item in self.parameters.values())

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of one position's keys and values over all layers."""
        body = self.hparams.body
        return 2 * body.num_layers * body.kv_size * dtype.itemsize

    def embed(self, tokens: Tensor) -> Tensor:
        """[...] int64 target ids -> [..., hidden] float32."""
        if self.hparams.has_own_embeddings:
            return self.products.rows("embed_tokens", tokens)
        return self.ends.embed(tokens)

    def head(self, normed: Tensor) -> Tensor:
        """[..., hidden] behind the final norm -> [..., draft_vocab] float32."""
        if self.hparams.has_own_head:
            return self.products("lm_head", normed)
        return self.ends.head(normed)

    def target_token_ids(self) -> Tensor:
        """[draft_vocab] int64 target id of each token that the draft knows."""
        if self.draft_token_ids is not None:
            return self.draft_token_ids
        return torch.arange(self.hparams.draft_vocab_size)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Normalise with the parameter `name`.weight."""
        return rms_norm(x, self.parameters[f"{name}.weight"], self.hparams.body.norm_eps)

    def queries(self, index: int, x: Tensor, positions: Tensor) -> Tensor:
        """Rotated queries of layer `index`: [..., heads, head_dim] from x [..., in]."""
        projected = self._heads(f"layers.{index}.self_attn.q_proj", x)
        return self._rotate(index, "q_norm", projected, positions)

    def keys_values(self, index: int, x: Tensor, positions: Tensor) -> LayerKv:
        """Rotated keys, and values, of layer `index`: [..., kv_heads, head_dim] from [..., in]."""
        projected = self._heads(f"layers.{index}.self_attn.k_proj", x)
        return LayerKv(
            self._rotate(index, "k_norm", projected, positions),
            self._heads(f"layers.{index}.self_attn.v_proj", x),
        )

    def _heads(self, name: str, x: Tensor) -> Tensor:
        projected = self.products(name, x)
        return projected.view(*projected.shape[:-1], -1, self.hparams.body.head_dim)

    def _rotate(self, index: int, norm: str, x: Tensor, positions: Tensor) -> Tensor:
        body = self.hparams.body
        if body.has_qk_norm:
            x = self.norm(f"layers.{index}.self_attn.{norm}", x)
        return self.rotary.rotate(x, body.layers[index].rotary, positions)
