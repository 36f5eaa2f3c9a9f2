"""Gated DeltaNet: a layer that remembers a text in one matrix a head instead of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.kv.state_storage import StateStorage
from slipstream.kv.states import StateSpan
from slipstream.models.hparams import DeltaParams
from slipstream.models.layers.activation import sigmoid, silu
from slipstream.models.layers.block import LayerContext
from slipstream.models.layers.delta_rule import DeltaRows, DeltaRule
from slipstream.models.layers.linear import Linear
from slipstream.models.layers.norm import RmsNorm

_NORM_EPS = 1e-6
_LINEAR_ABOVE = 20.0  # softplus is the identity there, in float32


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """One layer's weights.

    Attributes:
        inputs: Rows of convolved channels (queries, keys, values), of the norm's gates, of rates
            and of decays, in the order that `order` says.
        order: [num_out] output of `inputs` for each of these; None where they are in order.
        kernel: [channels, kernel_len], the newest row last.
        log_decay, decay_bias: [value_heads].
        norm: Of each head's output.
        output: To the residual stream.
    """

    inputs: Linear
    order: Tensor | None
    kernel: Tensor
    log_decay: Tensor
    decay_bias: Tensor
    norm: RmsNorm
    output: Linear


class DeltaNet:
    """A short convolution, the gated delta rule and a gated norm between two products.

    Args:
        state_layer: Layer of the state storage.
        rule: Computes the recurrence.
    Source: Qwen3-Next's published code; Yang et al. 2024 (arXiv:2412.06464).
    """

    def __init__(
        self, state_layer: int, params: DeltaParams, weights: DeltaWeights, rule: DeltaRule
    ) -> None:
        self.params = params
        self._layer = state_layer
        self._weights = weights
        self._rule = rule
        self._kernel = weights.kernel.float().t().contiguous()
        self._decay = -torch.exp(weights.log_decay.float())
        self._decay_bias = weights.decay_bias.float()

    def __call__(self, normed: Tensor, context: LayerContext) -> Tensor:
        """See `Part`; the sequences' states are read and written on the way."""
        params = self.params
        fed = context.multiply(self._weights.inputs, normed.to(context.dtype)).float()
        if self._weights.order is not None:
            fed = fed.index_select(1, self._weights.order)
        channels, gates, rates, decays = fed.split_with_sizes(
            [params.num_channels, params.value_size, params.value_heads, params.value_heads], 1
        )
        fed = torch.cat((channels, self._decays(decays), sigmoid(rates)), 1)
        mixed = self._remember(fed, context)
        gates = gates.reshape(len(gates), params.value_heads, params.value_dim)
        normed = self._weights.norm(mixed).mul_(silu(gates)).flatten(1)
        return context.multiply(self._weights.output, normed.to(context.dtype))

    @property
    def rule_name(self) -> str:
        """What computes the recurrence."""
        return self._rule.name

    def linears(self) -> tuple[Linear, ...]:
        """See `Part`."""
        return self._weights.inputs, self._weights.output

    def norms(self) -> tuple[RmsNorm, ...]:
        """See `Part`."""
        return (self._weights.norm,)

    def _decays(self, x: Tensor) -> Tensor:
        x = x + self._decay_bias
        soft = torch.where(x > _LINEAR_ABOVE, x, x.clamp(max=_LINEAR_ABOVE).exp().log1p())
        return soft.mul_(self._decay).exp_()

    def _remember(self, fed: Tensor, context: LayerContext) -> Tensor:
        """[rows, row_size] -> [rows, value_heads, value_dim]; rows in no span give zeros."""
        params, spans = self.params, context.spans
        storage = context.storage.states
        assert storage is not None, "a model with recurrent layers needs a state storage"
        assert spans, "recurrent layers must be told whose the rows are"
        outputs = fed.new_zeros(len(fed), params.value_heads, params.value_dim)
        tails = [storage.tails[self._layer][span.source] for span in spans]
        parts = [self._rows_of(span, fed, storage) for span in spans]
        channels = [
            torch.cat((tail, rows[:, : params.num_channels]))
            for tail, rows in zip(tails, parts, strict=True)
        ]
        self._keep(spans, channels, fed, storage)
        joined = torch.cat(parts)
        firsts = _starts([len(rows) for rows in parts])
        mixed = self._rule(
            self._delta_rows(self._convolved(channels), joined[:, params.num_channels :]),
            firsts,
            spans,
            storage.matrices[self._layer],
        )
        for span, first in zip(spans, firsts, strict=True):
            start = first + span.num_kept
            outputs[span.first_row : span.first_row + span.num_rows] = mixed[
                start : start + span.num_rows
            ]
        return outputs

    def _rows_of(self, span: StateSpan, fed: Tensor, storage: StateStorage) -> Tensor:
        own = fed[span.first_row : span.first_row + span.num_rows]
        if not span.num_kept:
            return own
        return torch.cat((storage.drafts[self._layer][span.target, : span.num_kept], own))

    def _keep(
        self,
        spans: Sequence[StateSpan],
        channels: Sequence[Tensor],
        fed: Tensor,
        storage: StateStorage,
    ) -> None:
        """Write the convolution's past and the draft rows; all that is read was read before."""
        tails, drafts = storage.tails[self._layer], storage.drafts[self._layer]
        for span, past in zip(spans, channels, strict=True):
            if not span.target:
                continue
            for count, state in ((span.num_kept + span.num_known, span.target), *span.snapshots):
                tails[state] = past[count : count + self.params.tail_len]
            first = span.first_row + span.num_known
            drafts[span.target, : span.num_drafts] = fed[first : first + span.num_drafts]

    def _convolved(self, channels: Sequence[Tensor]) -> Tensor:
        """[rows of all spans, channels]: a weighted sum of each row and those before it."""
        flat = torch.cat(list(channels))
        tail_len = self.params.tail_len
        count = len(flat) - tail_len
        total = flat[:count] * self._kernel[0]
        for offset in range(1, tail_len + 1):
            total.add_(flat[offset : offset + count] * self._kernel[offset])
        starts = _starts([len(rows) for rows in channels])
        kept = [
            total[start : start + len(rows) - tail_len]
            for start, rows in zip(starts, channels, strict=True)
        ]
        return silu(torch.cat(kept))

    def _delta_rows(self, mixed: Tensor, rates: Tensor) -> DeltaRows:
        params = self.params
        key_size = params.key_heads * params.key_dim
        queries, keys, values = mixed.split_with_sizes([key_size, key_size, params.value_size], 1)
        shape = (len(mixed), params.key_heads, params.key_dim)
        queries = _unit(queries.reshape(shape)).mul_(params.key_dim**-0.5)
        return DeltaRows(
            queries=self._for_values(queries),
            keys=self._for_values(_unit(keys.reshape(shape))),
            values=values.reshape(len(mixed), params.value_heads, params.value_dim),
            decays=rates[:, : params.value_heads],
            rates=rates[:, params.value_heads :],
        )

    def _for_values(self, x: Tensor) -> Tensor:
        """[rows, key_heads, key_dim] -> [rows, value_heads, key_dim]"""
        repeats = self.params.value_heads // self.params.key_heads
        return x.repeat(1, repeats, 1) if self.params.is_tiled else x.repeat_interleave(repeats, 1)


def _unit(x: Tensor) -> Tensor:
    return x * x.square().sum(-1, keepdim=True).add_(_NORM_EPS).rsqrt_()


def _starts(lengths: Sequence[int]) -> list[int]:
    return [sum(lengths[:index]) for index in range(len(lengths))]
