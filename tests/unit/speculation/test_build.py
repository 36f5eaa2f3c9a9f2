"""From the configuration to guarded drafters."""

from __future__ import annotations

import subprocess
import sys

from slipstream.clock import ManualClock
from slipstream.config.speculation import NgramConfig, SpeculationConfig, SuffixConfig
from slipstream.speculation.build import build_drafters
from slipstream.speculation.drafter import Drafter
from slipstream.speculation.guard import GuardedDrafter
from tests.support.drafters import RecordedEvents, draft_context


def _build(config: SpeculationConfig, vocab_size: int = 100) -> list[Drafter]:
    return build_drafters(
        config,
        vocab_size=vocab_size,
        eos_token_ids=(2,),
        draft_models={},
        draft_nets={},
        metrics=RecordedEvents(),
        clock=ManualClock(),
    )


def test_drafters_come_guarded_in_the_configured_order() -> None:
    config = SpeculationConfig(
        drafters=(NgramConfig(name="copy"), SuffixConfig(), NgramConfig(name="again", min_n=3))
    )
    drafters = _build(config)
    assert [drafter.name for drafter in drafters] == ["copy", "suffix", "again"]
    assert all(isinstance(drafter, GuardedDrafter) for drafter in drafters)


def test_an_empty_list_builds_none() -> None:
    assert _build(SpeculationConfig(drafters=())) == []


def test_the_settings_reach_the_drafter() -> None:
    context = draft_context([5, 6, 7, 2, 99, 5, 6])
    cut, uncut, short = (
        _build(SpeculationConfig(drafters=(config,)))[0].propose([context])[0].tokens
        for config in (
            NgramConfig(cut_at_eos=True),
            NgramConfig(cut_at_eos=False),
            NgramConfig(max_draft_len=1),
        )
    )
    assert (cut, uncut, short) == ((7,), (7, 2), (7,))


def test_the_vocabulary_reaches_the_drafter() -> None:
    (drafter,) = _build(SpeculationConfig(drafters=(SuffixConfig(),)), vocab_size=8)
    (tree,) = drafter.propose([draft_context([5, 6, 7, 8, 9, 5, 6])])
    assert tree.tokens == (7,)


def test_model_free_drafters_do_without_torch() -> None:
    script = (
        "import sys, slipstream.speculation.drafters.ngram, slipstream.speculation.merge, "
        "slipstream.speculation.drafters.suffix.drafter, slipstream.speculation.guard; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
