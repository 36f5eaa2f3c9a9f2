"""Mixtures of experts: a row goes through a few of many small networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.models.hparams import MoeParams
from slipstream.models.layers.activation import GatedActivation, sigmoid
from slipstream.models.layers.block import LayerContext
from slipstream.models.layers.linear import Linear
from slipstream.models.layers.mlp import DenseMlp
from slipstream.models.layers.norm import RmsNorm


@dataclass(frozen=True, slots=True)
class Choice:
    """The experts that rows go through.

    Attributes:
        experts: [rows, num_chosen] int64, the best first.
        weights: [rows, num_chosen] float32.
    """

    experts: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class Experts:
    """One layer's experts, chosen row by row.

    All rows of the pass that chose an expert go through it together, in admitted row counts, and
    every row adds its experts by ascending index, so no row can tell who went with it.

    Attributes:
        router: float32; rows of experts, then one for the shared network's gate where it has one.
        bias: [num_experts] float32, decides who is chosen; None where the family has none.
        gate_ups, downs: By expert.
        shared: What every row goes through besides; None where there is none.
    """

    params: MoeParams
    router: Linear
    bias: Tensor | None
    gate_ups: Sequence[Linear]
    downs: Sequence[Linear]
    activation: GatedActivation
    shared: DenseMlp | None

    def __call__(self, normed: Tensor, context: LayerContext) -> Tensor:
        """See `Part`; float32."""
        logits = context.multiply(self.router, normed)
        choice = choose(logits[:, : self.params.num_experts], self.bias, self.params)
        x = normed.to(context.dtype)
        mixed = torch.zeros_like(normed)
        chosen = choice.experts.flatten()
        order = chosen.argsort(stable=True)
        rows = order // self.params.num_chosen
        weights = choice.weights.flatten().index_select(0, order).unsqueeze(-1)
        counts = chosen.bincount(minlength=self.params.num_experts)
        start = 0
        for expert, count in enumerate(counts.tolist()):
            if count:
                own = slice(start, start + count)
                output = self._run(expert, x, rows[own], context)
                mixed.index_add_(0, rows[own], output.float().mul_(weights[own]))
                start += count
        if self.shared is None:
            return mixed
        output = self.shared(normed, context).float()
        if self.params.is_shared_gated:
            output = output * sigmoid(logits[:, self.params.num_experts :])
        return mixed.add_(output)

    def linears(self) -> tuple[Linear, ...]:
        """See `Part`."""
        shared = () if self.shared is None else self.shared.linears()
        return (self.router, *self.gate_ups, *self.downs, *shared)

    def norms(self) -> tuple[RmsNorm, ...]:
        """See `Part`."""
        return ()

    def _run(self, expert: int, x: Tensor, rows: Tensor, context: LayerContext) -> Tensor:
        """One expert on some rows of `x`, which are padded to admitted counts."""
        cuts = list(context.cover(len(rows)))
        padding = rows[:1].expand(sum(cuts) - len(rows))
        picked = x.index_select(0, torch.cat((rows, padding)))
        gate_up, down = self.gate_ups[expert], self.downs[expert]
        parts = [down(self.activation(gate_up(part))) for part in picked.split_with_sizes(cuts)]
        return torch.cat(parts)[: len(rows)]


def choose(logits: Tensor, bias: Tensor | None, params: MoeParams) -> Choice:
    """Which experts each row goes through, and with which weights.

    Args:
        logits: [rows, num_experts] float32.
        bias: [num_experts] float32 or None.
    Source of groups and bias: DeepSeek-V3 (arXiv:2412.19437), section 2.1.2, and its code.
    """
    if params.scoring == "sigmoid":
        scores = sigmoid(logits)
    else:
        scores = logits.sub(logits.amax(-1, keepdim=True)).exp_()
        scores.div_(scores.sum(-1, keepdim=True))
    ranked = scores if bias is None else scores + bias
    if params.num_groups > 1:
        ranked = _only_best_groups(ranked, params)
    experts = _best(ranked, params.num_chosen)
    weights = scores.gather(-1, experts)
    if params.normalises:
        weights = weights / weights.sum(-1, keepdim=True)
    return Choice(experts, weights * params.weight_scale)


def _only_best_groups(ranked: Tensor, params: MoeParams) -> Tensor:
    groups = ranked.view(len(ranked), params.num_groups, -1)
    best_two = groups.sort(dim=-1, descending=True, stable=True).values[..., :2]
    chosen = _best(best_two.sum(-1), params.num_chosen_groups)
    is_out = torch.ones(groups.shape[:-1], dtype=torch.bool).scatter_(-1, chosen, False)
    return groups.masked_fill(is_out.unsqueeze(-1), -torch.inf).flatten(1)


def _best(values: Tensor, count: int) -> Tensor:
    """Indices of the greatest values, of equals the lowest; `topk` promises no order of these."""
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]
