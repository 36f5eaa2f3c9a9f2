"""What a run begins with: a new net, or one that exists already."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.errors import ConfigError
from slipstream.training.dataset import Dataset
from slipstream.training.draft_files import require_writable
from slipstream.training.draft_vocab import select_draft_tokens
from slipstream.training.given import GivenNet
from slipstream.training.nets import TrainedNet, grow
from slipstream.training.packing import MIN_RESPONSE_LEN, cut_answers
from slipstream.training.session import TrainingTarget, start_net
from slipstream.training.settings import RunSettings
from slipstream.training.sources import FeatureSource
from slipstream.training.start import FixedParts, Lessons
from slipstream.training.tap_scales import NUM_MEASURED, exact_scales, tap_scales_of, usual_taps


@dataclass(frozen=True, slots=True)
class Beginning:
    """Attributes:
    fixed: What stays through the run.
    net: With its first weights.
    """

    fixed: FixedParts
    net: TrainedNet


def begin_new(
    settings: RunSettings, target: TrainingTarget, dataset: Dataset, source: FeatureSource
) -> Beginning:
    """Measure what is measured before a training, and make a net that starts from it.

    Raises:
        ConfigError: There is nothing to train on.
    """
    _require_lessons(dataset, settings)
    answers, eos = dataset.of_side("train"), target.loaded.tokenizer.eos_token_ids
    size = settings.net.draft_vocab_size
    token_ids = select_draft_tokens(answers, target.identity.vocab_size, size, eos)
    taps = usual_taps(source.features(dataset.indices("train")[:NUM_MEASURED]))
    fixed = FixedParts(token_ids, tap_scales_of(taps))
    return Beginning(fixed, start_net(settings, target, fixed, Lessons(answers, taps)))


def begin_with(
    given: GivenNet,
    settings: RunSettings,
    target: TrainingTarget,
    dataset: Dataset,
    source: FeatureSource,
) -> Beginning:
    """Start with a net's weights; there may be more layers, a wider MLP and more tokens.

    The most frequent tokens of the answers are those that the net comes to know beside the old
    ones. See `take_over`.

    Raises:
        ConfigError: The net has another shape, one that could not be written, or holds what is no
            number; or there is nothing to train on.
    """
    _require_lessons(dataset, settings)
    given.require_room(settings.net)
    for name, parameter in given.net.trained().items():
        if not bool(parameter.isfinite().all()):
            raise ConfigError(
                f"the net in {given.name} holds numbers that are not finite, first in {name}",
                hint="start with another checkpoint of it, or without --start-from",
            )
    answers, vocab_size = dataset.of_side("train"), target.identity.vocab_size
    size, always = settings.net.draft_vocab_size, given.net.known_ids().tolist()
    token_ids = select_draft_tokens(answers, vocab_size, size, always)
    scales = given.tap_scales
    if scales is None:
        taps = usual_taps(source.features(dataset.indices("train")[:NUM_MEASURED]))
        scales = exact_scales(tap_scales_of(taps))
    fixed = FixedParts(token_ids, scales)
    net = grow(given.net, settings.net, target.start(fixed, given.net.ends), settings.fit.seed)
    require_writable(net.stored_hparams(), net.stored(), target.identity)
    return Beginning(fixed, net)


def _require_lessons(dataset: Dataset, settings: RunSettings) -> None:
    indices = dataset.indices("train")
    if not cut_answers(dataset.answers, indices, settings.fit.pack_len):
        num_held_out = len(dataset.answers) - len(indices)
        raise ConfigError(
            f"{dataset.path} has no answer to train on: of {len(dataset.answers)}, {num_held_out} "
            f"are held out, and {len(indices)} have less than {MIN_RESPONSE_LEN} tokens",
            hint="add answers with `slipstream train data`, or make another folder that holds out "
            "a smaller --validation-share",
        )
