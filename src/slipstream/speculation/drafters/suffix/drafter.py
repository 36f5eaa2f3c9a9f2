"""Suffix decoding: draft what most often followed the last tokens, here and in other outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.speculation.drafter import DraftContext, DrafterNeeds, Observation
from slipstream.speculation.drafters.suffix.automaton import IndexedSequence, SuffixAutomaton
from slipstream.speculation.drafters.suffix.calibrate import calibrated_scores
from slipstream.speculation.drafters.suffix.ledger import Ledger
from slipstream.speculation.drafters.suffix.memory import SharedMemory
from slipstream.speculation.drafters.suffix.predict import Continuation, Limits, Predictor
from slipstream.speculation.merge import merge_trees
from slipstream.speculation.tree import EMPTY_TREE, DraftTree

_TEXT_BYTES = 2500  # an automaton without states, its arrays and a sequence


@dataclass(frozen=True, slots=True)
class SuffixRules:
    """How a suffix drafter remembers and proposes.

    Attributes:
        max_depth: Longest run of tokens that is counted, context and draft together.
        max_cached_requests: Outputs remembered for each salt; the oldest go first.
        max_memory_bytes: Bound of everything remembered, over all salts and running requests.
        max_spec_factor, max_spec_offset: A context of n tokens may propose factor * n + offset.
        min_token_prob: Least estimated probability of a proposed token.
        is_tree: Propose trees instead of chains.
        vocab_size: No id at or above it is drafted.
        max_text_tokens: Of a longer text only the last so many tokens are indexed when drafting
            starts, which bounds the time of the first proposal; later tokens are added.
        eos_token_ids: Tokens that end an output, unless a request ignores them.
    """

    max_depth: int
    max_cached_requests: int
    max_memory_bytes: int
    max_spec_factor: float
    max_spec_offset: float
    min_token_prob: float
    is_tree: bool
    vocab_size: int
    max_text_tokens: int
    eos_token_ids: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Text:
    """Prompt and output of one running request.

    Attributes:
        num_seen: Tokens of the request so far, those before the indexed part included.
        last_token: The last of them.
        is_dropped: It did not fit the memory: nothing of it is kept.
    """

    automaton: SuffixAutomaton
    num_seen: int
    sequence: IndexedSequence = field(default_factory=IndexedSequence)
    last_token: int = -1
    is_dropped: bool = False

    def is_prefix_of(self, tokens: Sequence[int]) -> bool:
        """Whether `tokens` can be a later stage of this text; compares the last token only."""
        return self.num_seen <= len(tokens) and tokens[self.num_seen - 1] == self.last_token

    def catch_up(self, tokens: Sequence[int]) -> None:
        if not self.is_dropped:
            self.automaton.extend(self.sequence, tokens[self.num_seen :])
        self.num_seen = len(tokens)
        self.last_token = tokens[-1]

    def own_match(self) -> tuple[int, int]:
        """The longest proper suffix of the text, as `SuffixAutomaton.match` would find it."""
        suffix_len = min(len(self.sequence.tokens), self.automaton.max_depth) - 1
        return self.automaton.holder(self.sequence.state, suffix_len), suffix_len

    def drop(self) -> None:
        self.automaton = SuffixAutomaton(self.automaton.max_depth)
        self.sequence = IndexedSequence()
        self.is_dropped = True

    def memory_bytes(self) -> int:
        return _TEXT_BYTES + self.automaton.memory_bytes()


@dataclass(slots=True)
class _Output:
    """A running request's output in the shared memory of its salt."""

    salt: str
    key: int
    num_shared: int = 0


class SuffixDrafter:
    """Proposes from the request's own text and from other outputs with the same salt.

    Of the two chains the one goes out that promises more accepted tokens; two trees are merged.

    Running outputs are shared token by token, so that concurrent requests help each other;
    finished ones stay until they are evicted; what is released unfinished is forgotten. Beyond
    `max_memory_bytes` the salt that holds most loses its oldest output, so a salt that takes less
    than its share never feels the others; then the longest running texts go, whose requests are
    drafted for from shared outputs only.
    """

    def __init__(self, name: str, rules: SuffixRules) -> None:
        self._name = name
        self._sources = frozenset((name,))
        self._rules = rules
        self._predictor = Predictor(
            rules.max_depth, rules.max_spec_factor, rules.max_spec_offset, is_tree=rules.is_tree
        )
        self._texts: dict[str, _Text] = {}
        self._outputs: dict[str, _Output] = {}
        self._memories: dict[str, SharedMemory] = {}
        self._num_outputs = 0
        self._text_ledger = Ledger()
        self._shared_ledger = Ledger()

    @property
    def name(self) -> str:
        return self._name

    @property
    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def propose(self, contexts: Sequence[DraftContext]) -> list[DraftTree]:
        """A chain or tree for each context whose last tokens occurred before."""
        trees = [self._propose_one(context) for context in contexts]
        self._stay_within_memory()
        return trees

    def observe(self, observations: Sequence[Observation]) -> None:
        """Share what was committed with the other requests of the salt."""
        for item in observations:
            if self._rules.max_cached_requests:
                self._share(item)
            if item.is_finished:
                self._outputs.pop(item.request_id, None)
                self._forget_text(item.request_id)
        self._stay_within_memory()

    def release(self, request_ids: Sequence[str]) -> None:
        """Free the texts of these requests, and their outputs if they did not finish."""
        for request_id in request_ids:
            self._forget_text(request_id)
            output = self._outputs.pop(request_id, None)
            if output is not None and output.salt in self._memories:
                self._memories[output.salt].remove(output.key)
                self._account(output.salt)

    def memory_bytes(self) -> int:
        """Estimate of everything remembered."""
        return self._text_ledger.total_bytes + self._shared_ledger.total_bytes

    def _propose_one(self, context: DraftContext) -> DraftTree:
        limits = self._limits(context)
        text = self._text_of(context)
        own = self._predictor.predict(text.automaton, text.own_match(), limits)
        own_scores = calibrated_scores(own.probs, own.parents, own.match_len, is_shared=False)
        memory = self._memories.get(context.salt)
        if memory is None:
            return self._tree(own, own_scores)
        match = memory.automaton.match(context.tokens[-self._rules.max_depth :])
        shared = self._predictor.predict(memory.automaton, match, limits)
        scores = calibrated_scores(shared.probs, shared.parents, shared.match_len, is_shared=True)
        if self._rules.is_tree:
            trees = [self._tree(own, own_scores), self._tree(shared, scores)]
            return merge_trees(trees, limits.max_nodes, limits.max_len)
        if sum(scores) > sum(own_scores):
            return self._tree(shared, scores)
        return self._tree(own, own_scores)

    def _tree(self, found: Continuation, scores: Sequence[float]) -> DraftTree:
        tokens = found.tokens
        if not tokens:
            return EMPTY_TREE
        sources = (self._sources,) * len(tokens)
        return DraftTree(tuple(tokens), tuple(found.parents), tuple(scores), sources)

    def _limits(self, context: DraftContext) -> Limits:
        params = context.params
        end_tokens = self._rules.eos_token_ids
        if params.ignore_eos or params.stop_token_ids:
            kept = frozenset() if params.ignore_eos else end_tokens
            end_tokens = kept.union(params.stop_token_ids)
        return Limits(
            max_nodes=context.max_draft_nodes,
            max_len=context.max_draft_len,
            min_prob=self._rules.min_token_prob,
            vocab_size=self._rules.vocab_size,
            end_tokens=end_tokens,
        )

    def _text_of(self, context: DraftContext) -> _Text:
        tokens = context.tokens
        text = self._texts.get(context.request_id)
        if text is None or not text.is_prefix_of(tokens):
            first = max(len(tokens) - self._rules.max_text_tokens, 0)
            text = _Text(SuffixAutomaton(self._rules.max_depth), num_seen=first)
            self._texts[context.request_id] = text
        text.catch_up(tokens)
        self._text_ledger.record(context.request_id, text.memory_bytes())
        return text

    def _forget_text(self, request_id: str) -> None:
        self._texts.pop(request_id, None)
        self._text_ledger.record(request_id, 0)

    def _share(self, item: Observation) -> None:
        output = self._outputs.get(item.request_id)
        if output is None:
            self._num_outputs += 1
            output = _Output(item.salt, self._num_outputs)
            self._outputs[item.request_id] = output
            memory = self._memories.get(item.salt)
            if memory is None:
                memory = SharedMemory(self._rules.max_depth, self._rules.max_cached_requests)
                self._memories[item.salt] = memory
            memory.start(output.key)
        if output.salt in self._memories:
            new = item.tokens[item.prompt_len + output.num_shared :]
            self._memories[output.salt].extend(output.key, new)
            output.num_shared += len(new)
            self._account(output.salt)

    def _account(self, salt: str) -> None:
        memory = self._memories[salt]
        if memory:
            self._shared_ledger.record(salt, memory.memory_bytes())
        else:
            del self._memories[salt]
            self._shared_ledger.record(salt, 0)

    def _stay_within_memory(self) -> None:
        while self.memory_bytes() > self._rules.max_memory_bytes:
            salt = self._shared_ledger.largest()
            if salt is not None:
                self._memories[salt].evict_oldest()
                self._account(salt)
                continue
            request_id = self._text_ledger.largest()
            if request_id is None or self._texts[request_id].is_dropped:
                return
            text = self._texts[request_id]
            text.drop()
            self._text_ledger.record(request_id, text.memory_bytes())
