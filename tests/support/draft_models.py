"""Draft-model drafters over scripted models, and contexts for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream.kv.cache import KvCache
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import RowRequest, Sampler
from slipstream.sampling.state import advance
from slipstream.speculation.drafter import DraftContext, Observation
from slipstream.speculation.drafters.draft_model.drafter import DraftModelDrafter
from slipstream.speculation.drafters.draft_model.parts import DraftModelParts, DraftModelRules
from tests.support.scripted_target import LogitsOf, ScriptedTarget, hashed_logits
from tests.support.words import started

VOCAB_SIZE = 300
EOS = 2


@dataclass
class DraftModel:
    """A drafter with what it runs on."""

    drafter: DraftModelDrafter
    kv: KvCache
    runner: ScriptedTarget

    @property
    def num_passes(self) -> int:
        return len(self.runner.batches)

    def row_counts(self) -> list[int]:
        """Rows of each pass so far."""
        return [len(batch.tokens) for batch in self.runner.batches]


def make_draft_model(
    logits_of: LogitsOf | None = None,
    *,
    rules: DraftModelRules | None = None,
    num_pages: int = 256,
    page_size: int = 4,
    max_len: int = 4096,
    prefix_cache: bool = True,
    name: str = "draft_model",
) -> DraftModel:
    """A drafter over a scripted model; by default a chain of up to 8 tokens."""
    kv = KvCache(num_pages, page_size, prefix_cache=prefix_cache)
    runner = ScriptedTarget(kv.num_slots, logits_of or hashed_logits(VOCAB_SIZE))
    parts = DraftModelParts(
        runner=runner,
        kv=kv,
        sampler=Sampler(VOCAB_SIZE, (EOS,)),
        max_len=max_len,
        kv_bytes_per_token=64,
        weight_bytes=1000,
    )
    rules = rules or DraftModelRules(num_children=1, max_draft_len=8, least_score=0.0)
    return DraftModel(DraftModelDrafter(name, parts, rules), kv, runner)


def disturbed(logits_of: LogitsOf, scale: float) -> LogitsOf:
    """The same model with noise on its logits: a draft model that is often right."""
    noise_of = hashed_logits(VOCAB_SIZE, memory=2, favourites=1)

    def logits(tokens: tuple[int, ...]) -> torch.Tensor:
        return logits_of(tokens) + scale * noise_of((*tokens, 0))

    return logits


def context(
    tokens: Sequence[int],
    params: SamplingParams | None = None,
    *,
    request_id: str = "r",
    prompt_len: int | None = None,
    salt: str = "",
    max_draft_len: int = 8,
    max_draft_nodes: int = 16,
) -> DraftContext:
    """A context whose state is that of its output tokens."""
    params = params or SamplingParams(temperature=0.0)
    prompt_len = len(tokens) if prompt_len is None else prompt_len
    state = started(params, tokens[:prompt_len])
    for token in tokens[prompt_len:]:
        state = advance(params, state, token)
    return DraftContext(
        request_id=request_id,
        tokens=list(tokens),
        prompt_len=prompt_len,
        params=params,
        state=state,
        seed=params.seed,
        salt=salt,
        max_draft_len=max_draft_len,
        max_draft_nodes=max_draft_nodes,
    )


def observation(
    tokens: Sequence[int], num_new: int, *, request_id: str = "r", salt: str = ""
) -> Observation:
    """A step made these the request's tokens."""
    return Observation(
        request_id=request_id,
        salt=salt,
        tokens=list(tokens),
        num_new=num_new,
        prompt_len=1,
        is_finished=False,
    )


def continuation(
    logits_of: LogitsOf, prompt: Sequence[int], params: SamplingParams, count: int
) -> list[int]:
    """What a target with these logits says, token by token."""
    sampler = Sampler(VOCAB_SIZE, (EOS,))
    tokens, state = list(prompt), started(params, prompt)
    for _ in range(count):
        row = RowRequest(params, state, params.seed, len(tokens))
        token = sampler.sample(logits_of(tuple(tokens))[None], [row])[0]
        state = advance(params, state, token)
        tokens.append(token)
    return tokens[len(prompt) :]


def cached_tokens(model: DraftModel, request_id: str = "r") -> list[int]:
    """Tokens whose rows the request's lease has committed, read from the storage."""
    lease = model.kv.leases[request_id]
    slots = lease.slots(0, lease.num_tokens)
    return [int(token) for token in model.runner.storage.tokens[slots]]
