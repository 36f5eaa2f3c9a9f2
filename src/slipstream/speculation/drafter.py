"""The seam between the engine and whatever proposes drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from slipstream.sampling.params import SamplingParams
from slipstream.sampling.state import SamplingState
from slipstream.speculation.tree import DraftTree

if TYPE_CHECKING:
    from torch import Tensor

SlotArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DrafterNeeds:
    """What a drafter must be given; the engine asks for this, never for the drafter's kind.

    Attributes:
        target_layer_ids: Layers whose output hidden states the drafter reads (taps).
        kv_bytes_per_token: Bytes of its own KV cache per token; 0 when it has none.
        weight_bytes: Bytes of its own weights, counted against the memory budget.
        max_len: Longest sequence it can draft for; None is no limit.
    """

    target_layer_ids: tuple[int, ...] = ()
    kv_bytes_per_token: int = 0
    weight_bytes: int = 0
    max_len: int | None = None


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What a drafter may see of one request when it proposes.

    Attributes:
        request_id: Stable name of the sequence (each choice of `n` has its own).
        tokens: Prompt and committed output; the last one is the anchor.
        prompt_len: How many of them are prompt.
        params, state, seed: The sampler's arguments, so that a drafter with logits can draw with
            the request's own processors and noise (position = index of the token drawn).
        salt: Tenant / cache salt; memory shared between requests is keyed by it.
        max_draft_len, max_draft_nodes: Bounds for this proposal; both at least 1.
        wants_laws: Verification is by rejection: `seed` is of a stream for this draft alone, and
            whoever draws proposes one chain of draws with their laws (`DraftTree.laws`). What no
            random number decides, such as copied text, needs none.
        slots: [rows] slots of the target's cache that hold the text so far, a row per position;
            the anchor's is not among them. To be read during the call only.
    """

    request_id: str
    tokens: Sequence[int]
    prompt_len: int
    params: SamplingParams
    state: SamplingState
    seed: int
    salt: str
    max_draft_len: int
    max_draft_nodes: int
    wants_laws: bool = False
    slots: SlotArray = field(default_factory=lambda: np.empty(0, np.int64), compare=False)


@dataclass(frozen=True, slots=True)
class TargetRows:
    """Rows of one request that the target has computed, in one step or several, and that stay.

    Attributes:
        request_id: As in `DraftContext`.
        slots: [first + rows] slot of every position so far, these rows last.
        next_tokens: The token behind each row; behind the last row of a finished text is none.
        rows: [rows] int64 where they are in `taps`.
        taps: Layer -> [any number, hidden] its output, for `DrafterNeeds.target_layer_ids`; the
            same for all requests of a call.
    """

    request_id: str
    slots: SlotArray
    next_tokens: Sequence[int]
    rows: SlotArray
    taps: Mapping[int, Tensor]


@dataclass(frozen=True, slots=True)
class Observation:
    """What one step committed for one request.

    Attributes:
        request_id, salt: As in `DraftContext`.
        tokens: All tokens now (prompt and output), stop cuts applied.
        num_new: How many of them this step added.
        prompt_len: How many of them are prompt.
        is_finished: No further step follows.
    """

    request_id: str
    salt: str
    tokens: Sequence[int]
    num_new: int
    prompt_len: int
    is_finished: bool


class Drafter(Protocol):
    """Proposes drafts. An implementation owns its state per `request_id`.

    Contract (tests/contract/test_drafters.py runs over every implementation):
    `propose` returns one tree per context, in order, within its bounds, with token ids inside the
    target's vocabulary; an empty tree when it has nothing to say. It must not keep `tokens`.
    Where a context `wants_laws`, a node's score must not depend on the draw of its own token: it
    decides about the node, and drafts that are kept by what they are bend the law of the answer.
    Proposals depend only on contexts and observations with the same salt.
    `release` frees all that is held for a request and is safe for unknown ids.
    """

    @property
    def name(self) -> str:
        """Instance name from `speculation.drafters`."""
        ...

    @property
    def needs(self) -> DrafterNeeds: ...

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]: ...

    def observe(self, observations: Sequence[Observation]) -> None: ...

    def release(self, request_ids: Sequence[str]) -> None: ...

    def memory_bytes(self) -> int:
        """Bytes of host memory that its state holds now, for the memory metrics."""
        ...


@runtime_checkable
class TapReader(Protocol):
    """A drafter that reads the target's states: what `needs.target_layer_ids` names."""

    @property
    def needs(self) -> DrafterNeeds: ...

    def absorb(self, rows: Sequence[TargetRows]) -> None:
        """Learn of every row that stays, prompt chunks included, in order.

        Each is told before the next proposal for its request and before its page is shared, not
        necessarily after each pass (`engine.taps`). Rows that the target takes from its prefix
        cache are not computed and not told again: what a reader keeps about them lies in the same
        slots of a storage of its own.
        """
        ...
