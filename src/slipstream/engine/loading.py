"""Models as the engine uses them: weights in memory, tokenizer, limits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from slipstream.config.drafters import TARGET_SOURCE
from slipstream.config.model import Activations, ModelConfig
from slipstream.config.mtp import MtpConfig
from slipstream.config.speculation import (
    DraftModelConfig,
    DraftNetConfig,
)
from slipstream.errors import (
    ConfigError,
    TokenizerError,
    VocabularyMismatchError,
    WeightsError,
)
from slipstream.kernels.library import open_kernels
from slipstream.models.decoder import Model
from slipstream.models.drafts.ends import ModelEnds
from slipstream.models.drafts.hparams import DraftFamily, family_of
from slipstream.models.drafts.load import AnyDraftNet, load_draft
from slipstream.models.drafts.origin import require_origin
from slipstream.models.identity import identify
from slipstream.models.load import load_model
from slipstream.models.mtp.heads import MtpHeads
from slipstream.models.mtp.load import load_heads
from slipstream.sampling.sampler import Sampler
from slipstream.tokenization.gguf_tokenizer import has_vocabulary
from slipstream.tokenization.tokenizer import Tokenizer, find_tokenizer, load_tokenizer
from slipstream.tokenization.vocabulary import require_same_vocabulary
from slipstream.weights.checkpoint import Checkpoint
from slipstream.weights.open import open_checkpoint
from slipstream.weights.progress import Progress, SilentProgress
from slipstream.weights.sources import resolve_source

log = logging.getLogger("slipstream.engine")

_FAMILIES: Mapping[str, tuple[DraftFamily, ...]] = {
    "eagle3": ("eagle3",),
    "dflash": ("dflash", "dflash2"),
    "dspark": ("dspark",),
    "mtp": ("mtp",),
}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_KV_DTYPES = _DTYPES | {"int8": torch.int8}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One model in memory.

    Attributes:
        name: As it is served.
        max_model_len: Most tokens of one sequence.
    """

    name: str
    path: Path
    model: Model
    tokenizer: Tokenizer
    max_model_len: int
    dtype: torch.dtype

    @property
    def vocab_size(self) -> int:
        """Ids that may be drawn: those that both the tokenizer and the head know."""
        return min(self.tokenizer.vocab_size, self.model.hparams.vocab_size)

    @property
    def bits_per_weight(self) -> float:
        """Bits that a weight of the layers' matrices takes in memory, on average."""
        linears = [linear for layer in self.model.layers for linear in layer.linears()]
        num_weights = sum(linear.shape[0] * linear.shape[1] for linear in linears)
        return 8.0 * sum(linear.nbytes for linear in linears) / num_weights

    def sampler(self) -> Sampler:
        """A new one, since a sampler has buffers, for one user of this model's vocabulary."""
        return Sampler(self.vocab_size, self.tokenizer.eos_token_ids, open_kernels())

    def kv_dtype(self, setting: str) -> torch.dtype:
        """Type of keys and values; `auto` is that of the weights."""
        return _KV_DTYPES.get(setting, self.dtype)

    def kv_bytes_per_token(self, setting: str) -> int:
        """Bytes of one token's keys and values over all layers."""
        return self.model.hparams.kv_shape.bytes_per_token(self.kv_dtype(setting))


def load_target(config: ModelConfig, progress: Progress | None = None) -> LoadedModel:
    """Fetch (if need be), open and load the model to serve.

    Raises:
        WeightsError, TokenizerError, ConfigError: It cannot be served; the message says why.
    """
    path = resolve_source(config, progress=progress or SilentProgress())
    dtype = _DTYPES.get(config.dtype, torch.bfloat16)
    model, tokenizer = _load(path, dtype, config.activations, config.tokenizer)
    longest = model.hparams.max_positions
    if config.max_model_len is not None and config.max_model_len > longest:
        raise ConfigError(
            f"model.max_model_len must be at most the model's own {longest}, got "
            f"{config.max_model_len}"
        )
    return LoadedModel(
        name=config.public_name,
        path=path,
        model=model,
        tokenizer=tokenizer,
        max_model_len=config.max_model_len or longest,
        dtype=dtype,
    )


def load_draft_model(
    config: DraftModelConfig, target_config: ModelConfig, target: LoadedModel
) -> LoadedModel:
    """Load a draft model and prove that it shares the target's vocabulary.

    Raises:
        VocabularyMismatchError: It does not; names the first token that differs.
    """
    dtype = _DTYPES.get(config.dtype, torch.bfloat16)
    path = target.path if config.source == TARGET_SOURCE else draft_path(config, target_config)
    model, tokenizer = _load(path, dtype, config.activations)
    require_same_vocabulary(target.tokenizer, tokenizer)
    if model.hparams.state_shape is not None:
        raise ConfigError(
            f"drafter {config.name} has recurrent layers, whose states draft models do not keep",
            hint="use a draft model whose every layer has attention",
        )
    if model.hparams.vocab_size < target.vocab_size:
        raise VocabularyMismatchError(
            f"drafter {config.name} has logits for {model.hparams.vocab_size} tokens, the target "
            f"draws from {target.vocab_size}",
            hint="use a draft model with the target's whole vocabulary",
        )
    longest = model.hparams.max_positions
    return LoadedModel(
        name=config.name,
        path=path,
        model=model,
        tokenizer=tokenizer,
        max_model_len=min(longest, config.max_len or longest),
        dtype=dtype,
    )


def load_draft_net(
    config: DraftNetConfig, target_config: ModelConfig, target: LoadedModel
) -> AnyDraftNet:
    """Load a draft net and prove that it fits the target.

    Raises:
        WeightsError: It does not, was trained for another, or is of another kind than the
            configuration says.
        VocabularyMismatchError: It brings a tokenizer that is not the target's.
    """
    dtype = _DTYPES.get(config.dtype, torch.bfloat16)
    checkpoint = open_checkpoint(draft_path(config, target_config))
    require_same_tokenizer(checkpoint, target.tokenizer)
    require_origin(checkpoint.path, identify(target.name, target.model))
    ends = ModelEnds(target.model)
    net = load_draft(checkpoint, target.model.hparams, ends, dtype, open_kernels())
    require_family(config, checkpoint.path, family_of(net.hparams))
    return net


def load_mtp_heads(config: MtpConfig, target_config: ModelConfig, target: LoadedModel) -> MtpHeads:
    """Load multi-token-prediction heads and prove that they fit the target.

    Raises:
        WeightsError: There are none, they do not fit, or were trained for another target; says
            what is missing.
        VocabularyMismatchError: They come with a tokenizer that is not the target's.
    """
    dtype = _DTYPES.get(config.dtype, torch.bfloat16)
    is_own = config.source == TARGET_SOURCE
    checkpoint = open_checkpoint(target.path if is_own else draft_path(config, target_config))
    if not is_own:
        require_same_tokenizer(checkpoint, target.tokenizer)
        require_origin(checkpoint.path, identify(target.name, target.model))
    return load_heads(checkpoint, target.model, dtype, open_kernels())


def require_family(config: DraftNetConfig, path: Path, family: DraftFamily) -> None:
    """Refuse a net of another family than the configuration says.

    Raises:
        WeightsError: Names both, and the kind to write.
    """
    if family not in _FAMILIES[config.kind]:
        raise WeightsError(
            f"drafter {config.name} is configured as {config.kind}, but {path} holds a drafter of "
            f"family {family}",
            hint=f"say kind: {kind_of(family)}",
        )


def kind_of(family: DraftFamily) -> str:
    """The kind of drafter, in the configuration, that serves a family of nets."""
    return next(kind for kind, of in _FAMILIES.items() if family in of)


def require_same_tokenizer(checkpoint: Checkpoint, target: Tokenizer) -> bool:
    """Refuse a draft net that brings a tokenizer of other tokens; many bring none.

    Returns: Whether there was one to compare.

    Raises:
        VocabularyMismatchError: Names the first token that differs.
    """
    path, metadata = checkpoint.path, checkpoint.gguf_metadata
    if path.is_file() and not (metadata and has_vocabulary(metadata)):
        return False  # a tokenizer.json beside a file need not be the file's
    try:
        tokenizer = find_tokenizer(path, metadata)
    except TokenizerError as error:
        log.warning("the tokenizer of drafter %s cannot be compared: %s", path, error.message)
        return False
    if tokenizer is not None:
        require_same_vocabulary(target, tokenizer)
    return tokenizer is not None


def draft_path(
    config: DraftModelConfig | DraftNetConfig | MtpConfig, target_config: ModelConfig
) -> Path:
    """Where a drafter's weights are, fetched if need be."""
    source = ModelConfig(
        source=config.source,
        sha256=config.sha256,
        revision=config.revision,
        cache_dir=target_config.cache_dir,
    )
    return resolve_source(source, progress=SilentProgress())


def _load(
    path: Path, dtype: torch.dtype, activations: Activations, tokenizer_path: Path | None = None
) -> tuple[Model, Tokenizer]:
    checkpoint = open_checkpoint(path)
    model = load_model(
        checkpoint,
        dtype,
        kernels=open_kernels(),
        activations="int8" if activations == "int8" else "bfloat16",
    )
    checkpoint.finish()
    if tokenizer_path is not None:
        return model, load_tokenizer(tokenizer_path)
    return model, load_tokenizer(path, checkpoint.gguf_metadata)
