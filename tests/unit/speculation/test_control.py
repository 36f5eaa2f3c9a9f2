"""How much is drafted: as much as pays, next to nothing where nothing pays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.speculation.control import (
    NO_DRAFT,
    DraftLimit,
    FixedController,
    StepFeedback,
)
from slipstream.speculation.cost import StepCost
from slipstream.speculation.cost_control import CostController
from slipstream.speculation.tree import EMPTY_TREE, ROOT, DraftTree

BOUNDS = DraftLimit(8, 16)
FREE = {1: 1.0, 128: 1.01}
STEEP = {1: 1.0, 128: 128.0}

Accept = Callable[[DraftTree], tuple[int, ...]]


def controller_of(profile: Mapping[int, float] = FREE, probe_interval: int = 32) -> CostController:
    return CostController(
        StepCost(profile), decay=0.9, probe_interval=probe_interval, min_gain=1.05
    )


def chain(length: int, score: float = 1.0) -> DraftTree:
    return DraftTree.chain(list(range(length)), [score] * length, "test")


def everything(tree: DraftTree) -> tuple[int, ...]:
    return tuple(range(len(tree)))


def nothing(tree: DraftTree) -> tuple[int, ...]:
    return ()


def first_only(tree: DraftTree) -> tuple[int, ...]:
    return (0,) if tree else ()


@dataclass
class Log:
    """What a run of steps did, one entry per step."""

    asked: list[DraftLimit] = field(default_factory=list)
    num_verified: list[int] = field(default_factory=list)
    seconds: float = 0.0
    num_tokens: int = 0

    @property
    def num_asks(self) -> int:
        return sum(limit is not NO_DRAFT for limit in self.asked)


def drive(
    controller: CostController,
    accept: Accept,
    num_steps: int,
    *,
    names: tuple[str, ...] = ("r",),
    proposal: DraftTree | None = None,
    num_others: int = 0,
    draft_s: float = 0.0,
    bounds: DraftLimit = BOUNDS,
) -> Log:
    """Steps in which every name is drafted for and `num_others` requests decode plainly.

    Args:
        draft_s: Time that drafting takes for each request that is asked.
    """
    log = Log()
    whole = chain(8) if proposal is None else proposal
    for _ in range(num_steps):
        limits = {name: controller.limit(name, bounds) for name in names}
        trees = {
            name: whole.keep(range(min(len(whole), limit.max_draft_nodes)))
            for name, limit in limits.items()
            if limit is not NO_DRAFT and controller.asks(name, "test")
        }
        num_plain = len(names) + num_others
        kept = controller.prune(trees, num_plain, num_plain)
        num_rows = num_plain + sum(map(len, kept.values()))
        target_s, total_draft_s = controller.cost.seconds(num_rows), draft_s * len(trees)
        asked_s = {"test": total_draft_s} if trees else {}
        feedback = []
        for name in names:
            tree = kept.get(name, EMPTY_TREE)
            proposed = {"test": len(trees[name])} if name in trees else {}
            feedback.append(StepFeedback(name, proposed, tree, accept(tree)))
        feedback += [StepFeedback(f"other{i}", {}, EMPTY_TREE, ()) for i in range(num_others)]
        controller.observe(feedback, num_rows, target_s, asked_s)
        log.asked.extend(limits.values())
        log.num_verified.append(num_rows - num_plain)
        log.seconds += target_s + total_draft_s
        log.num_tokens += num_plain + sum(len(item.path) for item in feedback)
    return log


def step_alone(
    controller: CostController,
    draft: DraftTree,
    accept: Accept,
    *,
    seconds: Callable[[int], float] | None = None,
    draft_s: float = 0.0,
) -> DraftTree | None:
    """One step of request "r", which `draft` is proposed for; what is verified, or None where
    nobody is asked.

    Args:
        seconds: Of a pass by its rows; not given: what the controller expects.
    """
    is_asked = controller.limit("r", BOUNDS) is not NO_DRAFT and controller.asks("r", "test")
    tree = controller.prune({"r": draft}, 1, 1)["r"] if is_asked else EMPTY_TREE
    proposed = {"test": len(draft)} if is_asked else {}
    feedback = StepFeedback("r", proposed, tree, accept(tree))
    rows = 1 + len(tree)
    target_s = (seconds or controller.cost.seconds)(rows)
    controller.observe([feedback], rows, target_s, {"test": draft_s} if is_asked else {})
    return tree if is_asked else None


# ---- what is asked for, and what of it is kept ----


def test_a_fixed_controller_drafts_whatever_it_may() -> None:
    controller = FixedController()
    trees = {"a": chain(8)}
    assert controller.limit("a", BOUNDS) is BOUNDS
    assert controller.prune(trees, 1, 1) == trees
    controller.observe([], 1, 0.0, {})
    controller.release("a")


def test_a_new_request_may_draft_up_to_its_bounds() -> None:
    assert controller_of().limit("a", BOUNDS) == BOUNDS


def test_everything_is_verified_where_rows_cost_nothing() -> None:
    assert controller_of(FREE).prune({"a": chain(8)}, 1, 1) == {"a": chain(8)}


def test_nothing_is_verified_where_a_row_costs_as_much_as_a_token() -> None:
    assert controller_of(STEEP).prune({"a": chain(8)}, 4, 4) == {"a": EMPTY_TREE}


def test_the_better_draft_gets_the_rows() -> None:
    profile = {1: 1.0, 2: 1.0, 6: 1.1, 8: 8.0}  # four more rows are cheap, the next are not
    trees = {"likely": chain(4, 0.9), "unlikely": chain(4, 0.3)}
    kept = controller_of(profile).prune(trees, 2, 2)
    assert len(kept["likely"]) == 4
    assert kept["unlikely"] == EMPTY_TREE


def test_a_node_must_pay_for_the_whole_batch_and_not_for_its_request_alone() -> None:
    """One drafting request among 15 that decode plainly: a row slows all of them."""
    profile = {1: 0.55, 16: 1.3, 32: 2.1}  # at 16 rows, a row costs the time of 0.6 tokens
    trees = {"a": chain(8, 0.5)}
    assert controller_of(profile).prune(trees, 1, 1) == trees
    assert controller_of(profile).prune(trees, 16, 16) == {"a": EMPTY_TREE}


def test_rows_of_prompts_are_counted_as_rows_and_not_as_tokens() -> None:
    profile = {1: 1.0, 64: 1.0, 128: 64.0}
    trees = {"a": chain(8)}
    assert len(controller_of(profile).prune(trees, 4, 1)["a"]) == 8
    assert controller_of(profile).prune(trees, 64, 1)["a"] == EMPTY_TREE


def test_a_gain_below_the_least_gain_is_no_gain() -> None:
    profile = {1: 1.0, 2: 1.0}
    trees = {"a": chain(1, 0.04)}
    assert controller_of(profile).prune(trees, 1, 1)["a"] == EMPTY_TREE
    assert len(controller_of(profile).prune({"a": chain(1, 0.06)}, 1, 1)["a"]) == 1


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    edges: dict[tuple[int, int], int] = {}
    for _ in range(draw(st.integers(1, 16))):
        parent = draw(st.integers(ROOT, len(edges) - 1)) if edges else ROOT
        edges.setdefault((parent, draw(st.integers(0, 3))), len(edges))
    parents, tokens = zip(*edges, strict=True)
    scores = tuple(draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])) for _ in edges)
    return DraftTree(tokens, parents, scores, (frozenset({"test"}),) * len(edges))


@settings(max_examples=60, deadline=None)
@given(
    proposals=st.lists(trees(), min_size=1, max_size=4),
    per_row=st.sampled_from([0.0, 0.02, 0.1, 1.0]),
    seed=st.integers(0, 9),
)
def test_what_is_kept_is_always_a_subtree_with_its_parents(
    proposals: list[DraftTree], per_row: float, seed: int
) -> None:
    controller = controller_of({rows: 1.0 + per_row * rows for rows in (1, 128)}, 1)
    named = {f"r{number}": tree for number, tree in enumerate(proposals)}
    for step in range(6):
        for name in named:
            controller.limit(name, BOUNDS)
        kept = controller.prune(named, len(named), len(named))
        assert kept.keys() == named.keys()
        feedback = []
        for name, tree in kept.items():
            paths = {named[name].path_tokens(node) for node in range(len(named[name]))}
            assert {tree.path_tokens(node) for node in range(len(tree))} <= paths
            path = tree.path((seed + step) % len(tree)) if tree and step % 2 else ()
            feedback.append(StepFeedback(name, {"test": len(named[name])}, tree, path))
        controller.observe(feedback, len(named) + sum(map(len, kept.values())), 1.0, {})


# ---- what is learned ----


@pytest.mark.parametrize("profile", [FREE, STEEP, {1: 1.0, 8: 1.2, 128: 12.0}])
@pytest.mark.parametrize("draft_s", [0.0, 0.3])
@pytest.mark.parametrize("num_others", [0, 7, 31])
def test_a_hopeless_drafter_costs_almost_nothing(
    profile: Mapping[int, float], draft_s: float, num_others: int
) -> None:
    controller = controller_of(profile)
    log = drive(controller, nothing, 1000, num_others=num_others, draft_s=draft_s)
    plain_s = controller.cost.seconds(1 + num_others) * 1000
    assert plain_s / log.seconds > 0.97


@pytest.mark.parametrize("draft_s", [0.0, 0.2])
def test_a_good_drafter_is_used_in_every_step(draft_s: float) -> None:
    log = drive(controller_of(), everything, 200, draft_s=draft_s)
    assert log.num_asks == 200
    assert log.num_verified.count(8) >= 198  # now and then a pass is made without


def test_after_acceptance_has_collapsed_only_probes_are_verified() -> None:
    controller = controller_of({1: 1.0, 128: 12.7})
    drive(controller, everything, 200)
    before = drive(controller, everything, 20)
    after = drive(controller, nothing, 500)
    assert sum(before.num_verified) == 8 * 20
    assert sum(after.num_verified[60:]) <= 440 / 32
    assert max(after.num_verified[60:]) == 1


def test_an_expensive_drafter_is_not_asked_after_acceptance_has_collapsed() -> None:
    controller = controller_of()
    drive(controller, everything, 200, draft_s=0.2)
    after = drive(controller, nothing, 500, draft_s=0.2)
    assert sum(limit is not NO_DRAFT for limit in after.asked[40:]) <= 460 / 32


def test_a_drafter_whose_drafts_are_all_cut_is_not_asked_for_ever() -> None:
    """Nothing is verified, so nothing new is learned; asking still costs its time."""
    controller = controller_of(STEEP)
    log = drive(controller, everything, 500, num_others=7, draft_s=0.3)
    assert log.num_asks < 40


def test_a_drafter_that_gets_better_is_found_again() -> None:
    controller = controller_of()
    drive(controller, nothing, 300, draft_s=0.2)
    log = drive(controller, everything, 600, draft_s=0.2)
    assert log.num_verified[-50:].count(8) >= 49


def test_the_wait_between_probes_doubles_up_to_a_limit() -> None:
    controller = controller_of()
    log = drive(controller, nothing, 3000, draft_s=0.2)
    asks = [step for step, limit in enumerate(log.asked) if limit is not NO_DRAFT]
    gaps = [b - a for a, b in pairwise(asks) if b - a > 1]
    assert gaps == sorted(gaps)
    assert 8 * 32 <= gaps[-1] <= 8 * 32 + 1


@pytest.mark.parametrize("num_others", [0, 31])
def test_probes_take_a_hundredth_of_the_time_at_most(num_others: int) -> None:
    controller = controller_of(STEEP, probe_interval=1)
    drive(controller, nothing, 200, num_others=num_others)
    log = drive(controller, nothing, 2000, num_others=num_others)
    plain_s = controller.cost.seconds(1 + num_others) * 2000
    assert log.seconds / plain_s < 1.012


def test_deeper_drafts_are_tried_again_after_deeper_ones_have_failed() -> None:
    controller = controller_of({1: 1.0, 128: 12.7})
    drive(controller, first_only, 50)
    assert drive(controller, first_only, 50).num_verified.count(1) > 40
    log = drive(controller, everything, 600)
    assert log.num_verified[-5:].count(8) >= 4


def test_a_new_request_starts_with_what_others_have_taught() -> None:
    controller = controller_of({1: 1.0, 128: 12.7})
    for number in range(20):
        drive(controller, nothing, 30, names=(f"r{number}",))
        controller.release(f"r{number}")
    log = drive(controller, nothing, 30, names=("new",))
    assert sum(log.num_verified) <= 1


def test_short_requests_are_probed_as_often_as_long_ones() -> None:
    controller = controller_of({1: 1.0, 128: 12.7})
    nums_verified = []
    for number in range(300):
        log = drive(controller, nothing, 10, names=(f"r{number}",))
        nums_verified.append(sum(log.num_verified))
        controller.release(f"r{number}")
    after_learning = nums_verified[50:]
    assert max(after_learning) == 1
    assert 40 <= sum(after_learning) <= 2500 / 32 + 1


def test_drafts_come_back_for_new_requests_when_they_pay_again() -> None:
    controller = controller_of({1: 1.0, 128: 12.7})
    for number in range(40):
        drive(controller, nothing, 30, names=(f"bad{number}",))
        controller.release(f"bad{number}")
    for number in range(40):
        log = drive(controller, everything, 30, names=(f"good{number}",))
        controller.release(f"good{number}")
    assert sum(log.num_verified) == 8 * 30


# ---- drafters that have nothing to say ----


def test_reading_a_long_prompt_does_not_mute_a_drafter() -> None:
    controller = controller_of()
    drive(controller, nothing, 10, proposal=EMPTY_TREE, draft_s=5.0)
    assert controller.limit("r", BOUNDS) == BOUNDS


def test_an_expensive_drafter_that_never_says_anything_is_muted() -> None:
    log = drive(controller_of(), nothing, 500, proposal=EMPTY_TREE, draft_s=0.3)
    assert log.num_asks < 60


def test_a_cheap_drafter_may_be_silent_for_as_long_as_it_likes() -> None:
    controller = controller_of()
    drive(controller, nothing, 500, proposal=EMPTY_TREE, draft_s=0.0001)
    log = drive(controller, everything, 10, draft_s=0.0001)
    assert log.num_verified == [8] * 10


# ---- state ----


def test_nothing_is_kept_of_a_released_request() -> None:
    controller = controller_of()
    for number in range(50):
        drive(controller, nothing, 2, names=(f"r{number}",))
        controller.release(f"r{number}")
    controller.release("never seen")
    assert not controller._requests


def test_feedback_on_unknown_requests_is_ignored() -> None:
    controller = controller_of()
    controller.observe([StepFeedback("unknown", {"test": 3}, chain(3), (0,))], 4, 1.0, {})
    assert not controller._requests


def test_the_same_steps_give_the_same_decisions() -> None:
    logs = [drive(controller_of(STEEP), first_only, 100, draft_s=0.01) for _ in range(2)]
    assert logs[0] == logs[1]


# ---- several drafters ----

CHEAP, NET = "cheap", "net"


@dataclass
class Merged:
    """Drafts of two drafters for one request: `shared` nodes are proposed by both."""

    cheap: int = 0
    net: int = 0
    shared: int = 0

    def tree(self, names: frozenset[str]) -> DraftTree:
        """Below the root: a chain of both, then one of each; of the drafters in `names`."""
        nodes: list[tuple[int, int, frozenset[str]]] = []

        def add(length: int, sources: frozenset[str], parent: int) -> int:
            for _ in range(length if sources & names else 0):
                nodes.append((len(nodes), parent, sources & names))
                parent = len(nodes) - 1
            return parent

        last = add(self.shared, frozenset({CHEAP, NET}), ROOT)
        add(self.cheap, frozenset({CHEAP}), last)
        add(self.net, frozenset({NET}), last)
        tokens, parents, sources = zip(*nodes, strict=True) if nodes else ((), (), ())
        return DraftTree(tokens, parents, (0.9,) * len(nodes), sources)


def run_two(
    controller: CostController,
    drafts: Merged,
    accepted: Callable[[DraftTree], tuple[int, ...]],
    num_steps: int,
    net_s: float = 0.5,
) -> dict[str, list[int]]:
    """Steps of one request; the steps in which each drafter was asked."""
    asked: dict[str, list[int]] = {CHEAP: [], NET: []}
    for step in range(num_steps):
        names: frozenset[str] = frozenset()
        if controller.limit("r", BOUNDS) is not NO_DRAFT:
            names = frozenset(name for name in (CHEAP, NET) if controller.asks("r", name))
        for name in names:
            asked[name].append(step)
        whole = drafts.tree(names)
        tree = controller.prune({"r": whole}, 1, 1)["r"] if names else EMPTY_TREE
        proposed = {name: sum(name in of_node for of_node in whole.sources) for name in names}
        drafter_s = {name: net_s if name == NET else 0.001 for name in names}
        feedback = StepFeedback("r", proposed, tree, accepted(tree))
        controller.observe([feedback], 1 + len(tree), controller.cost.seconds(1), drafter_s)
    return asked


def of_cheap(tree: DraftTree) -> tuple[int, ...]:
    return tuple(node for node, sources in enumerate(tree.sources) if CHEAP in sources)


def of_net(tree: DraftTree) -> tuple[int, ...]:
    return tuple(node for node, sources in enumerate(tree.sources) if NET in sources)


def test_a_drafter_that_does_not_pay_takes_no_other_with_it() -> None:
    asked = run_two(controller_of(), Merged(cheap=2, net=2), of_cheap, 400)
    assert len(asked[CHEAP]) == 400
    assert len(asked[NET]) < 60


def test_a_dear_drafter_that_says_what_a_cheap_one_says_does_not_pay() -> None:
    asked = run_two(controller_of(), Merged(shared=3), everything, 400)
    assert len(asked[CHEAP]) == 400
    assert len(asked[NET]) < 60


def test_a_dear_drafter_that_pays_is_asked_beside_a_cheap_one() -> None:
    asked = run_two(controller_of(), Merged(cheap=2, net=3), of_net, 300)
    assert len(asked[NET]) == 300


def test_a_muted_drafter_is_probed_beside_one_that_drafts() -> None:
    controller = controller_of()
    run_two(controller, Merged(cheap=2, net=3), of_cheap, 300)
    asked = run_two(controller, Merged(cheap=2, net=3), of_net, 900)
    assert len(asked[NET]) > 400


def test_what_is_made_up_for_after_a_rest_is_not_the_price_of_asking() -> None:
    controller = controller_of()
    run_two(controller, Merged(net=1), nothing, 100)  # muted by now
    before = dict(controller._draft_s)
    run_two(controller, Merged(net=1), nothing, 600, net_s=50.0)
    assert controller._draft_s[NET] == before[NET]


# ---- passes without drafts, to compare with ----


def drive_bare(profile: Mapping[int, float], score: float, num_steps: int) -> list[int]:
    """Steps whose drafts were all left out."""
    controller, bare = controller_of(profile), []
    for step in range(num_steps):
        accept = first_only if step % 10 < 10 * score else nothing
        if not step_alone(controller, chain(1, score), accept):
            bare.append(step)
    return bare


@pytest.mark.parametrize(("score", "least", "most"), [(0.15, 16, 60), (0.9, 80, 110)])
def test_the_less_drafts_promise_the_more_often_they_are_left_out(
    score: float, least: int, most: int
) -> None:
    bare = drive_bare(FREE, score, 1000)
    gaps = [b - a for a, b in pairwise(bare)]
    assert least <= min(gaps)
    assert max(gaps) <= most


@pytest.mark.parametrize("believed_s", [0.7, 0.95])
def test_a_wrong_belief_about_passes_without_drafts_is_found_out(believed_s: float) -> None:
    """Rows seem cheap beside a pass of one row, which is in truth much quicker."""
    truth = {1: 0.55, 2: 1.0}
    controller = controller_of({1: believed_s, 2: 1.0, 128: 30.0})
    num_drafted = []
    for step in range(6000):
        accept = first_only if step % 5 < 3 else nothing
        tree = step_alone(controller, chain(1, 0.6), accept, seconds=truth.__getitem__)
        num_drafted.append(len(tree or ()))
    assert sum(num_drafted[:100]) > 20
    assert sum(num_drafted[-200:]) < 20


# ---- what asking costs, and whether a drafter that is not asked comes back ----


def ask_s_after_churn(num_requests: int, life: int, num_steps: int, first_s: float) -> float:
    """What asking is believed to cost when it took `first_s` alone and 0.02 s of each in a batch
    of requests that come and go."""
    controller = controller_of({1: 1.0, 128: 2.0})
    drive(controller, everything, 30, draft_s=first_s)
    controller.release("r")
    for step in range(num_steps):
        ages = [(step + offset) % life for offset in range(num_requests)]
        names = [f"r{step - age}-{offset}" for offset, age in enumerate(ages)]
        asked = []
        for name in names:
            if controller.limit(name, BOUNDS) is not NO_DRAFT and controller.asks(name, "test"):
                asked.append(name)
        kept = controller.prune({name: chain(2) for name in asked}, num_requests, num_requests)
        feedback = []
        for name, age in zip(names, ages, strict=True):
            tree = kept.get(name, EMPTY_TREE)
            proposed = {"test": 2} if name in asked else {}
            feedback.append(StepFeedback(name, proposed, tree, first_only(tree)))
            if age == life - 1:
                controller.release(name)
        rows = num_requests + sum(map(len, kept.values()))
        drafter_s = {"test": 0.02 * len(asked)} if asked else {}
        controller.observe(feedback, rows, controller.cost.seconds(rows), drafter_s)
    return controller._draft_s["test"]


def test_the_price_of_asking_follows_a_batch_that_shares_it() -> None:
    assert ask_s_after_churn(16, 12, 400, first_s=0.6) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("every", [2, 5, 10])
def test_a_drafter_that_seldom_says_anything_is_charged_for_every_ask(every: int) -> None:
    controller, tokens, seconds = controller_of(), 0, 0.0
    for step in range(2000):
        draft = EMPTY_TREE if step % every else chain(1)
        tree = step_alone(controller, draft, everything, seconds=lambda _: 1.0, draft_s=0.6)
        tokens += 1 + len(tree or ())
        seconds += 1.0 if tree is None else 1.6
    assert tokens / seconds > 0.93


def test_a_cheap_drafter_may_wait_long_for_its_chance() -> None:
    """Asking costs little but not nothing, and 80 asks in a row bring nothing."""
    controller = controller_of()
    for step in range(810):
        tree = step_alone(
            controller, EMPTY_TREE if step % 81 else chain(8), everything, draft_s=0.03
        )
        assert tree is not None or step < 81
    assert not controller._requests["r"]["test"].is_muted


def test_a_drafter_that_costs_more_than_a_token_comes_back_when_it_pays() -> None:
    controller = controller_of()
    drive(controller, nothing, 60, draft_s=1.2)
    log = drive(controller, everything, 1500, draft_s=1.2)
    assert log.num_verified[-100:].count(8) >= 98


def test_a_drafter_that_may_no_longer_draft_is_not_waited_for() -> None:
    """It was muted; then its text has become too long for it, so nobody asks whether to ask it."""
    controller = controller_of()
    drive(controller, nothing, 200, draft_s=0.2)
    limits = []
    for _ in range(600):
        limits.append(controller.limit("r", BOUNDS))
        controller.observe([StepFeedback("r", {}, EMPTY_TREE, ())], 1, 1.0, {})
    assert sum(limit is not NO_DRAFT for limit in limits) < 600 / 32


def test_whether_a_pass_is_bare_does_not_depend_on_its_own_drafts() -> None:
    """As verification by rejection needs: scores may tell something of the tokens drawn."""

    def bare_steps(changed: int, changed_scores: list[float]) -> list[int]:
        controller = controller_of(FREE)
        controller._stops_at_loss = True
        bare = []
        for step in range(200):
            scores = changed_scores if step == changed else [0.9, 0.8]
            draft = DraftTree.chain([1, 2], scores, "test")
            if not step_alone(controller, draft, everything, seconds=lambda _: 1.0):
                bare.append(step)
        return bare

    (first,) = bare_steps(0, [0.9, 0.8])
    for scores in ([0.9, 0.1], [1.0, 1.0], [0.5, 0.5]):
        assert bare_steps(first, scores)[0] == first
        assert bare_steps(first - 1, scores)[0] >= first
