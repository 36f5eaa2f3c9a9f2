"""The numbers that make one draft net differ from another. No torch.

One convention for taps in all of this package: tap i is the residual stream behind decoder layer
i, counted from 0, before any norm; -1 is the output of the embedding. Checkpoints that count
otherwise are translated when they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipstream.models.hparams import Hparams

DraftFamily = Literal["eagle3", "mtp", "dflash", "dflash2", "dspark"]
MarkovKind = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True, slots=True)
class DraftHparams:
    """What every draft net has.

    Attributes:
        body: The draft's own layers; its `vocab_size` is the target's.
        target_hidden_size: Width of one tap.
        num_taps: Taps that `fc` reads side by side.
        tap_layer_ids: Which ones, in the order in which `fc` reads them; None where the family's
            rule decides, which needs the target's depth (see `default_tap_layer_ids`).
        draft_vocab_size: Tokens that the draft's head knows.
        has_own_embeddings, has_own_head: Whether the checkpoint holds them; else the target's.
    """

    body: Hparams
    target_hidden_size: int
    num_taps: int
    tap_layer_ids: tuple[int, ...] | None
    draft_vocab_size: int
    has_own_embeddings: bool
    has_own_head: bool

    @property
    def is_reduced(self) -> bool:
        """Whether the draft knows only some of the target's tokens."""
        return self.draft_vocab_size != self.body.vocab_size


@dataclass(frozen=True, slots=True)
class Eagle3Hparams(DraftHparams):
    """EAGLE-3 (Li et al. 2025, arXiv:2503.01840) and its published options.

    Attributes:
        has_normed_residual: The first layer's residual is the normalised hidden state.
        has_input_norm: Taps are normalised together before `fc`.
        recycles_normed: A chained row reads the state behind the final norm, not before it.
    """

    has_normed_residual: bool = False
    has_input_norm: bool = False
    recycles_normed: bool = False


@dataclass(frozen=True, slots=True)
class MtpHparams(Eagle3Hparams):
    """A multi-token-prediction head in training: unrolled like EAGLE-3, with one tap.

    The tap is the target's last layer's output; what is recycled lies behind the final norm.
    """


@dataclass(frozen=True, slots=True)
class DFlashHparams(DraftHparams):
    """DFlash (arXiv:2602.06036): a block of masks behind the anchor, drafted in one pass.

    Attributes:
        draft_block_len: Rows of the block it was trained for, the anchor's included.
        mask_token_id: Target token whose embedding stands for "not known".
        first_draft_row: First row whose logits are a draft. 1: a row predicts its own position;
            0: a row predicts the one behind it, the anchor's included.
        causal_layers: By layer, whether a row sees only earlier rows of its block.
        logit_scale: Factor on the head's output, before the cap.
        logit_cap: c of c * tanh(logit / c); None is no cap.
        embedding_scale: Factor on the embeddings of the block.
    """

    draft_block_len: int
    mask_token_id: int
    first_draft_row: int
    causal_layers: tuple[bool, ...]
    logit_scale: float = 1.0
    logit_cap: float | None = None
    embedding_scale: float = 1.0

    @property
    def max_draft_len(self) -> int:
        """Drafts of a whole block."""
        return self.draft_block_len - self.first_draft_row


@dataclass(frozen=True, slots=True)
class DFlash2Hparams(DFlashHparams):
    """What DFlash 2 adds: convolutions around each sub-layer, and a path selector.

    Attributes:
        conv_kernel_len: Taps of a convolution, the row's own included.
        conv_group_size: Channels that share their dynamic coefficients.
        selector_rank: Width of the codebooks that score pairs of neighbours.
        selector_top_k: Candidates per row.
    """

    conv_kernel_len: int = 2
    conv_group_size: int = 16
    selector_rank: int = 256
    selector_top_k: int = 16


@dataclass(frozen=True, slots=True)
class DSparkHparams(DFlashHparams):
    """What DSpark (arXiv:2607.05147) adds: a Markov head and a confidence head.

    Attributes:
        markov_kind: How the previous token biases a row's logits; None is no Markov head.
        markov_rank: Width of the previous token's embedding.
        has_confidence: Whether the net estimates that a draft is accepted.
        confidence_reads_markov: Whether that estimate sees the previous token.
        confidence_temperatures: By draft position, the divisor of the estimate's logit; empty is 1
            throughout.
    """

    markov_kind: MarkovKind | None = None
    markov_rank: int = 0
    has_confidence: bool = False
    confidence_reads_markov: bool = False
    confidence_temperatures: tuple[float, ...] = ()


def family_of(hparams: DraftHparams) -> DraftFamily:
    """The family's name."""
    match hparams:
        case MtpHparams():
            return "mtp"
        case Eagle3Hparams():
            return "eagle3"
        case DFlash2Hparams():
            return "dflash2"
        case DSparkHparams():
            return "dspark"
    return "dflash"


def default_tap_layer_ids(hparams: DraftHparams, num_target_layers: int) -> tuple[int, ...]:
    """Taps where the checkpoint names none.

    EAGLE-3 reads the inputs of layers 2, L // 2 and L - 3; block drafters spread their taps evenly
    from layer 1 to L - 3.
    """
    if isinstance(hparams, Eagle3Hparams):
        return (1, num_target_layers // 2 - 1, num_target_layers - 4)
    count = hparams.num_taps
    if count == 1:
        return (num_target_layers // 2,)
    span = num_target_layers - 4
    return tuple(round(1 + index * span / (count - 1)) for index in range(count))
