from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slipstream.models.drafts.dflash import BlockNet
from slipstream.models.drafts.eagle3 import Eagle3Net
from slipstream.models.drafts.hparams import DraftFamily
from slipstream.models.drafts.load import AnyDraftNet
from slipstream.models.drafts.parts import Context, empty_context
from slipstream.training.batch_blocks import BlockLabels
from slipstream.training.block_objective import BlockBatch
from slipstream.training.eagle_objective import EagleBatch
from slipstream.training.families.table import FAMILIES as TRAINED
from slipstream.training.objective import Batch, DraftIds, Outcome
from slipstream.training.packing import Packs, arrange, build_packs, cut_answers
from slipstream.training.session import TrainingTarget, open_source
from slipstream.training.settings import RunSettings
from tests.support.training import (
    FAMILIES,
    PACK_LEN,
    VOCAB_SIZE,
    counting_answers,
    empty_tally,
    tiny_net,
    tiny_settings,
    trainer_of,
    write_dataset,
)


def packs_of(target: TrainingTarget, path: Path, settings: RunSettings) -> Packs:
    answers = counting_answers(6)
    dataset = write_dataset(path / "data", target, answers)
    source = open_source(target, dataset, settings.net.tap_layer_ids, None)
    arranged = arrange(cut_answers(answers, range(6), PACK_LEN), PACK_LEN, 5)
    features = [source.features([piece.index for piece in pack]) for pack in arranged]
    return build_packs(arranged, answers, features, PACK_LEN)


def measured(
    settings: RunSettings, target: TrainingTarget, packs: Packs
) -> tuple[AnyDraftNet, Batch, Outcome]:
    net = tiny_net(settings, target)
    objective = net.objective(settings)
    batch = objective.prepare(packs, range(len(packs.tokens)))
    running = net.copy_in(torch.float32)
    with torch.no_grad():
        return running, batch, objective.measure(running, batch, 1.0)


def acceptance_of(
    net: AnyDraftNet, logits: torch.Tensor, labels: BlockLabels, where: tuple[int, ...]
) -> float:
    """Of one row's own distribution, drawn with the target's noise, token by token."""
    probs = torch.softmax(logits.detach(), -1)
    ids = DraftIds(net.draft_token_ids, VOCAB_SIZE).of(labels.top_ids[where])
    pairs = [
        (float(prob), float(probs[token]))
        for token, prob in zip(ids.tolist(), labels.top_probs[where], strict=True)
        if token >= 0
    ]
    rest = (1.0 - sum(p for p, _ in pairs), 1.0 - sum(q for _, q in pairs))
    return sum(
        p * q / sum(max(other[0] * q, other[1] * p) for other in (*pairs, rest))
        for p, q in pairs
        if p * q > 0.0
    )


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("family", ["dspark", "dflash"])
def test_a_packed_block_drafts_as_it_would_alone(
    family: DraftFamily, kind: str, target: TrainingTarget, tmp_path: Path
) -> None:
    settings = tiny_settings(family, {"markov_kind": kind})
    packs = packs_of(target, tmp_path, settings)
    net, batch, outcome = measured(settings, target, packs)
    assert isinstance(net, BlockNet)
    assert isinstance(batch, BlockBatch)
    labels = batch.labels
    num_blocks = labels.anchors.shape[1]
    for pack, block in [(0, 0), (1, 5)]:
        seen = labels.context[pack, block].nonzero().flatten()
        positions = packs.positions[pack, seen].unsqueeze(0)
        features = net.context_features(packs.taps[pack, seen].unsqueeze(0))
        visible = torch.ones(1, 1, len(seen), dtype=torch.bool)
        context = Context(net.context_kv(features, positions), positions, visible)
        num_rows = net.hparams.draft_block_len
        tokens = net.block_tokens(labels.anchors[pack, block].view(1, 1), num_rows)
        rows = labels.starts[pack, block] + torch.arange(num_rows).view(1, 1, -1)
        hidden = net.draft_rows(net.block_hidden(tokens, rows, context))[0, 0]
        state = None
        for depth, row in enumerate(hidden):
            previous = labels.previous[pack, block, depth]
            choices = net.choices(row, net.logits(row), previous, state)
            state = choices.state
            if labels.is_valid[pack, block, depth]:
                expected = acceptance_of(net, choices.logits, labels, (pack, block, depth))
                given = float(outcome.results.acceptance[pack * num_blocks + block, depth])
                assert given == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(("family", "num_layers"), [("eagle3", 1), ("eagle3", 3), ("mtp", 1)])
def test_an_unrolled_step_drafts_as_it_would_alone(
    family: DraftFamily, num_layers: int, target: TrainingTarget, tmp_path: Path
) -> None:
    settings = tiny_settings(family, {"num_layers": num_layers})
    packs = packs_of(target, tmp_path, settings)
    net, batch, outcome = measured(settings, target, packs)
    assert isinstance(net, Eagle3Net)
    assert isinstance(batch, EagleBatch)
    labels = batch.labels
    num_blocks = labels.anchors.shape[1]
    for pack, block in [(0, 0), (1, 5)]:
        seen = torch.cat((labels.context[pack, block].nonzero().flatten(), torch.tensor([-1])))
        seen[-1] = seen[-2] + 1  # the anchor itself
        tokens, positions = packs.tokens[pack, seen[1:]], packs.positions[pack, seen[:-1]]
        hidden = net.fuse(packs.taps[pack, seen[:-1]])
        for depth in range(settings.net.max_draft_len):
            num_rows = len(tokens)
            whole = net.extend(
                tokens.view(1, 1, -1),
                hidden.view(1, 1, num_rows, -1),
                positions.view(1, 1, -1),
                empty_context(net.hparams.body, 1, 1),
                (),
                torch.ones(num_rows, num_rows, dtype=torch.bool).tril(),
            )
            if labels.is_valid[pack, block, depth]:
                logits = net.head(whole.normed[0, 0, -1])
                expected = acceptance_of(net, logits, labels, (pack, block, depth))
                given = float(outcome.results.acceptance[pack * num_blocks + block, depth])
                assert given == pytest.approx(expected, abs=2e-3)
            tokens = torch.cat((tokens, labels.labels[pack, block, depth : depth + 1]))
            positions = torch.cat((positions, positions[-1:] + 1))
            hidden = torch.cat((hidden, whole.hidden[0, 0, -1:]))


@pytest.mark.parametrize("family", FAMILIES)
def test_training_lowers_the_loss_and_raises_acceptance(
    family: DraftFamily, target: TrainingTarget, tmp_path: Path
) -> None:
    settings = tiny_settings(family, num_steps=16)
    dataset = write_dataset(tmp_path / "data", target, counting_answers(12))
    trainer = trainer_of(settings, target, dataset)
    packs = arrange(cut_answers(dataset.answers, range(12), PACK_LEN), PACK_LEN, 1)
    before, after = empty_tally(settings), empty_tally(settings)

    loss_before = trainer.measure(packs, before)
    for step in range(16):
        trainer.step(step, packs, empty_tally(settings))
    loss_after = trainer.measure(packs, after)

    assert loss_after < loss_before
    if TRAINED[family].losses.soft:  # what the target says, which here is not what the answers say
        assert after.sampled_length() > before.sampled_length()
    else:
        assert after.greedy_length() > before.greedy_length() + 0.2


@pytest.mark.parametrize("family", ["dspark", "dflash2"])
def test_recomputing_layers_changes_no_gradient(
    family: DraftFamily, target: TrainingTarget, tmp_path: Path
) -> None:
    settings = tiny_settings(family)
    packs = packs_of(target, tmp_path, settings)
    gradients = []
    for recomputes in (False, True):
        fit = settings.fit.model_copy(update={"recomputes": recomputes})
        chosen = settings.model_copy(update={"fit": fit})
        net = tiny_net(chosen, target)
        objective = net.objective(chosen)
        batch = objective.prepare(packs, range(len(packs.tokens)))
        objective.measure(net.copy_in(torch.float32), batch, 1.0).loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        gradients.append([p.grad for p in net.trained().values()])
    for plain, recomputed in zip(*gradients, strict=True):
        assert plain is not None
        assert recomputed is not None
        torch.testing.assert_close(plain, recomputed)
