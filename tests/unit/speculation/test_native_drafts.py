"""Draft nets in native kernels against the same nets in torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from slipstream.models.drafts.load import AnyDraftNet
from slipstream.sampling.params import SamplingParams
from slipstream.speculation.drafter import DraftContext
from slipstream.speculation.learned.parts import num_request_slots
from slipstream.speculation.tree import DraftTree
from tests.support.draft_nets import FedDrafter, make_net_drafter, packed_net
from tests.support.drafters import draft_context
from tests.support.mtp import make_mtp_drafter
from tests.support.native import native_kernels

NETS: dict[str, tuple[str, dict[str, Any]]] = {  # Any: JSON values
    "eagle3": ("eagle3", {}),
    "dflash": ("dflash", {}),
    "dspark": ("dspark", {}),
    "eagle3 with gelu": ("eagle3", {"hidden_act": "gelu_pytorch_tanh"}),
    "dflash with gelu": ("dflash", {"hidden_act": "gelu_pytorch_tanh"}),
    "dspark without heads": ("dspark", {"markov_rank": 0, "enable_confidence_head": False}),
}
HEADS: dict[str, list[int] | None] = {
    "mtp": None,
    "mtp of some tokens": [3 * index + 1 for index in range(96)],
}
CHAINS = ("eagle3", "eagle3 with gelu", *HEADS)
DRAWS = {
    "greedy": SamplingParams(temperature=0.0),
    "sampled": SamplingParams(temperature=0.8, seed=3),
    "top k": SamplingParams(temperature=1.0, seed=3, top_k=7),
    "top p": SamplingParams(temperature=1.3, seed=3, top_p=0.5),
    "min p": SamplingParams(temperature=1.0, seed=3, min_p=0.3, top_k=20, top_p=0.9),
}
TEXT = [7 + 3 * (index * index % 83) for index in range(64)]


def pair(
    name: str, num_children: int, kv_dtype: torch.dtype = torch.float32, isa: str | None = None
) -> tuple[FedDrafter, FedDrafter]:
    """One net's drafter in torch and in native calls."""
    if name in HEADS:
        library = native_kernels(isa)
        of_both = [
            make_mtp_drafter(
                num_seats=4,
                kernels=library,
                is_target_native=is_native,
                draft_token_ids=HEADS[name],
                kv_dtype=kv_dtype,
            )
            for is_native in (False, True)
        ]
        return of_both[0], of_both[1]
    family, changes = NETS[name]
    net = packed_net(native_kernels(isa), family, dict(changes))
    num_spare = 4 * num_request_slots(net.hparams, num_children, 4)
    in_torch = make_net_drafter(family, num_children=num_children, net=net, kv_dtype=kv_dtype)
    native = make_net_drafter(
        family, num_children=num_children, net=net, num_spare_slots=num_spare, kv_dtype=kv_dtype
    )
    return in_torch, native


def drafts(drafter: FedDrafter, params: SamplingParams, request_id: str = "a") -> list[DraftTree]:
    """Behind a prompt, then as the text grows."""
    trees = []
    for end in (20, 21, 24, 40, 42):
        context = draft_context(TEXT[:end], request_id=request_id, prompt_len=20, params=params)
        trees += drafter.propose([context])
    return trees


def assert_alike(trees: Sequence[DraftTree], expected: Sequence[DraftTree]) -> None:
    """Equal but for roundings, which may exchange a few nodes of nearly equal scores."""
    assert len(trees) == len(expected)
    difference = total = 0.0
    for tree, other in zip(trees, expected, strict=True):
        assert tree
        scores = {tree.path_tokens(node): score for node, score in enumerate(tree.scores)}
        others = {other.path_tokens(node): score for node, score in enumerate(other.scores)}
        paths = scores.keys() | others.keys()
        difference += sum(abs(scores.get(path, 0.0) - others.get(path, 0.0)) for path in paths)
        total += sum(others.values())
    assert difference <= 0.2 * total


SHAPES = [(name, count) for name in NETS for count in (1, 3)] + [(name, 1) for name in HEADS]


@pytest.mark.parametrize(("name", "num_children"), SHAPES)
@pytest.mark.parametrize("draw", DRAWS)
def test_native_calls_draft_what_torch_drafts(name: str, num_children: int, draw: str) -> None:
    in_torch, native = pair(name, num_children)
    assert_alike(drafts(native, DRAWS[draw]), drafts(in_torch, DRAWS[draw]))


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("name", ["eagle3", "dspark", "mtp"])
def test_stored_keys_may_be_rounded(name: str, kv_dtype: torch.dtype) -> None:
    in_torch, native = pair(name, 1, kv_dtype)
    assert_alike(drafts(native, DRAWS["greedy"]), drafts(in_torch, DRAWS["greedy"]))


@pytest.mark.parametrize("name", [*NETS, *HEADS])
def test_every_instruction_set_drafts_the_same(name: str) -> None:
    _, best = pair(name, 3)
    _, portable = pair(name, 3, isa="portable")
    for params in DRAWS.values():
        assert_alike(drafts(portable, params), drafts(best, params))


def contexts(count: int) -> list[DraftContext]:
    params = list(DRAWS.values())
    return [
        draft_context(TEXT[index : 30 + 2 * index], request_id=str(index), params=params[index % 5])
        for index in range(count)
    ]


@pytest.mark.parametrize(("name", "num_children"), SHAPES)
def test_a_draft_does_not_depend_on_other_requests(name: str, num_children: int) -> None:
    """There are more requests than one call has spare slots for, and some draft less."""
    asked = contexts(4 if name in CHAINS else 6)
    asked[1] = replace(asked[1], max_draft_len=2)
    _, together = pair(name, num_children)
    _, alone = pair(name, num_children)
    joint = together.propose(asked)
    assert joint == [alone.propose([context])[0] for context in asked]
    assert all(joint)


def test_requests_with_processors_get_drafts_beside_others() -> None:
    """What changes logits is torch's, reading what native calls have stored."""
    banned = SamplingParams(temperature=0.0, allowed_token_ids=tuple(range(1, 290, 2)))
    for name in ("eagle3", "dspark", "mtp"):
        in_torch, native = pair(name, 3)
        asked = [
            draft_context(TEXT[:40], request_id="plain", params=DRAWS["greedy"]),
            draft_context(TEXT[:44], request_id="other", params=banned),
        ]
        trees = native.propose(asked)
        assert_alike(trees, in_torch.propose(asked))
        assert all(token % 2 for token in trees[1].tokens)


@pytest.mark.parametrize("name", CHAINS)
def test_more_requests_than_seats_take_turns(name: str) -> None:
    _, native = pair(name, 1)
    asked = contexts(9)
    assert [bool(tree) for tree in native.propose(asked)] == [False] * 5 + [True] * 4
    native.release([context.request_id for context in asked])
    assert native.memory_bytes() == 0
    assert native.propose(asked[:1])[0]


def test_what_native_passes_lack_is_torchs() -> None:
    library = native_kernels()
    lacking: list[AnyDraftNet] = [
        packed_net(library, "dflash2"),
        packed_net(library, "dspark", {"markov_head_type": "gated"}),
        packed_net(library, "dspark", {"markov_head_type": "rnn"}),
    ]
    for net in lacking:
        family = "dflash2" if net is lacking[0] else "dspark"
        drafter = make_net_drafter(family, net=net, num_spare_slots=64)
        assert all(drafts(drafter, DRAWS["greedy"]))
