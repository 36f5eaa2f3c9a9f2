"""Which tensors a head is made of, whether they are read or only looked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from slipstream.models.header_reader import HeaderReader
from slipstream.models.hparams import Hparams
from slipstream.models.layer_reader import LayerReader
from slipstream.models.mtp.ends import HeadEnds
from slipstream.models.mtp.heads import MtpHead
from slipstream.models.mtp.layout import HeadNames, MtpLayout
from slipstream.models.weight_reader import WeightReader
from slipstream.weights.checkpoint import Checkpoint


class HeadParts:
    """Reads all of a head but its matrices over tokens."""

    def __init__(self, reader: WeightReader, hparams: Hparams) -> None:
        self._reader = reader
        self._hidden = hparams.hidden_size
        self._layers = LayerReader(reader, hparams)

    def read(self, index: int, names: HeadNames) -> Callable[[HeadEnds], MtpHead]:
        """What makes the head once its ends are known."""
        hidden, norm = self._hidden, self._layers.norm
        return partial(
            MtpHead,
            self._reader.linear({names.fusion: hidden}, 2 * hidden),
            norm(names.embedding_norm, hidden),
            norm(names.hidden_norm, hidden),
            self._layers.layer(index, names.layer),
            norm(names.final_norm, hidden),
        )


def problems_of(checkpoint: Checkpoint, layout: MtpLayout, hparams: Hparams) -> list[str]:
    """Tensors of the heads that are missing or of the wrong shape, in words."""
    reader = HeaderReader(checkpoint)
    parts = HeadParts(reader, hparams)
    for index, names in enumerate(layout.heads):
        parts.read(index, names)
    return reader.problems
