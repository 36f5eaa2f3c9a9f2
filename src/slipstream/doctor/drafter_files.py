"""Whether a drafter's files fit the target, told before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipstream.config.drafters import TARGET_SOURCE
from slipstream.config.model import ModelConfig
from slipstream.config.mtp import MtpConfig
from slipstream.config.schema import Config
from slipstream.config.speculation import (
    DFlashConfig,
    DrafterConfig,
    DraftModelConfig,
    DraftNetConfig,
    DSparkConfig,
    Eagle3Config,
)
from slipstream.doctor.findings import Finding, wrong
from slipstream.engine.loading import (
    draft_path,
    kind_of,
    require_family,
    require_same_tokenizer,
)
from slipstream.errors import SlipstreamError
from slipstream.models.drafts.hparams import DFlashHparams
from slipstream.models.drafts.load import describe_checkpoint, misfits, no_drafter, with_taps
from slipstream.models.drafts.origin import read_origin
from slipstream.models.drafts.read import DraftCheckpoint
from slipstream.models.hparams import Hparams
from slipstream.models.identity import TargetIdentity
from slipstream.models.load import read_hparams
from slipstream.models.mtp.load import describe_heads, no_heads
from slipstream.models.mtp.load import misfits as head_misfits
from slipstream.tokenization.tokenizer import Tokenizer, load_tokenizer
from slipstream.tokenization.vocabulary import require_same_vocabulary
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.open import open_checkpoint

_CONFIGS: Mapping[str, type[Eagle3Config] | type[DFlashConfig] | type[DSparkConfig]] = {
    "eagle3": Eagle3Config,
    "dflash": DFlashConfig,
    "dspark": DSparkConfig,
}


@dataclass(frozen=True, slots=True)
class TargetFiles:
    """What drafters are compared with."""

    path: Path
    hparams: Hparams
    tokenizer: Tokenizer

    @staticmethod
    def read(path: Path, tokenizer: Path | None) -> TargetFiles:
        """From the headers of the target's checkpoint.

        Raises:
            WeightsError, TokenizerError: It cannot be read.
        """
        checkpoint = open_checkpoint(path)
        found = load_tokenizer(tokenizer or path, None if tokenizer else checkpoint.gguf_metadata)
        return TargetFiles(path, read_hparams(checkpoint.config), found)


def net_config(source: str, model: ModelConfig) -> DraftNetConfig | MtpConfig:
    """A drafter instance for a draft net or heads, its kind told by its files.

    Args:
        source: As `model.source`.
    Raises:
        WeightsError: It cannot be had, or is no draft net.
    """
    checkpoint = open_checkpoint(draft_path(DSparkConfig(source=source), model))
    if describe_heads(checkpoint) is not None:
        return MtpConfig(source=source)
    described = describe_checkpoint(checkpoint)
    if described is None:
        raise no_drafter(checkpoint)
    kind = kind_of(described.layout.family)
    return _CONFIGS[kind](source=source)


def check_drafter(item: DrafterConfig, config: Config, target: TargetFiles) -> list[Finding]:
    """Everything that its files say about one configured drafter."""
    check = f"{item.name}: files"
    try:
        if isinstance(item, DraftNetConfig):
            return _check_net(check, item, config, target)
        if isinstance(item, DraftModelConfig):
            return [_check_model(check, item, config, target)]
        if isinstance(item, MtpConfig):
            return [_check_heads(check, item, config, target)]
    except SlipstreamError as error:
        return [wrong(check, error)]
    return [Finding(check, "ok", f"{item.kind} needs none: it copies from texts")]


def check_origin(item: DraftNetConfig, path: Path, target: TargetIdentity) -> Finding | None:
    """Whether a net that Slipstream has trained was trained for these very weights."""
    made_for = read_origin(path)
    if made_for is None:
        return None
    check = f"{item.name}: origin"
    if made_for.weights_digest == target.weights_digest:
        return Finding(check, "ok", f"trained for {made_for.describe()}")
    return Finding(
        check,
        "warning",
        f"it was trained for {made_for.describe()}, and the target is {target.describe()}",
        "fewer drafts are accepted than by the weights that it was trained for, even where these "
        "are the same model in another format",
    )


def _check_net(
    check: str, item: DraftNetConfig, config: Config, target: TargetFiles
) -> list[Finding]:
    path = draft_path(item, config.model)
    checkpoint = open_checkpoint(path)
    described = describe_checkpoint(checkpoint)
    if described is None:
        raise no_drafter(checkpoint)
    require_family(item, path, described.layout.family)
    findings = [
        Finding(check, "wrong", problem, "use a drafter that was made for this target")
        for problem in misfits(described, target.hparams)
    ]
    findings = findings or [Finding(check, "ok", _told(described, path, target))]
    return [*findings, _check_tokenizer(item, checkpoint, target)]


def _check_heads(check: str, item: MtpConfig, config: Config, target: TargetFiles) -> Finding:
    is_own = item.source == TARGET_SOURCE
    checkpoint = open_checkpoint(target.path if is_own else draft_path(item, config.model))
    heads = describe_heads(checkpoint)
    if heads is None:
        raise no_heads(checkpoint)
    problems = head_misfits(heads, target.hparams)
    if problems:
        hint = "use a head that was trained with this target"
        return Finding(check, "wrong", "; ".join(problems), hint)
    count = len(heads.layout.heads)
    return Finding(check, "ok", f"{count} head{'s' * (count > 1)}, {heads.layout.name} layout")


def _check_tokenizer(item: DraftNetConfig, checkpoint: Checkpoint, target: TargetFiles) -> Finding:
    check = f"{item.name}: tokenizer"
    try:
        is_compared = require_same_tokenizer(checkpoint, target.tokenizer)
    except SlipstreamError as error:
        return wrong(check, error)
    told = "the target's" if is_compared else "it brings none; only its size could be compared"
    return Finding(check, "ok", told)


def _check_model(
    check: str, item: DraftModelConfig, config: Config, target: TargetFiles
) -> Finding:
    if item.source == "target":
        return Finding(check, "ok", "the target's own")
    path = draft_path(item, config.model)
    checkpoint = open_checkpoint(path)
    require_same_vocabulary(target.tokenizer, load_tokenizer(path, checkpoint.gguf_metadata))
    return Finding(check, "ok", f"a model with the target's vocabulary in {path}")


def _told(described: DraftCheckpoint, path: Path, target: TargetFiles) -> str:
    hparams = described.hparams
    taps = with_taps(hparams, target.hparams.num_layers).tap_layer_ids or ()
    parts = [
        f"{described.layout.family}, {described.layout.name} layout",
        f"taps after layers {', '.join(map(str, taps))}",
        f"{hparams.draft_vocab_size:,} of {hparams.body.vocab_size:,} tokens",
        f"texts of up to {hparams.body.max_positions:,} tokens",
    ]
    if isinstance(hparams, DFlashHparams):
        parts.append(f"blocks of {hparams.draft_block_len} rows")
    return f"{', '.join(parts)}, in {path}"
