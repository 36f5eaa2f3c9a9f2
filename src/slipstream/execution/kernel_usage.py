"""Which kernel served how many calls: a slow fallback cannot hide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from slipstream.models.decoder import DecoderInput, Model


class KernelUsage:
    """Counts the passes of one model; what a pass is made of is found out once.

    Args:
        attention: Name of the kernel that serves attention.
    """

    def __init__(self, model: Model, attention: str) -> None:
        self._attention = attention
        self._of_layers = Counter(
            kernel
            for layer in model.layers
            for linear in layer.linears()
            for kernel in linear.kernels
        )
        self._of_head = Counter(model.head.kernels)
        self._num_layers = model.hparams.kv_shape.num_layers
        self._num_passes = self._num_cuts = self._num_head_cuts = 0

    def passed(self, inputs: DecoderInput) -> None:
        """A pass is done."""
        self._num_passes += 1
        self._num_cuts += len(inputs.cuts)
        self._num_head_cuts += len(inputs.logit_cuts)

    def products(self) -> Mapping[str, int]:
        """Kernel -> matrix products so far; every kernel of the model is there."""
        kernels = sorted(self._of_layers | self._of_head)
        return {
            kernel: self._num_cuts * self._of_layers[kernel]
            + self._num_head_cuts * self._of_head[kernel]
            for kernel in kernels
        }

    def attention_calls(self) -> Mapping[str, int]:
        """Kernel -> calls of attention so far, one for each layer of a pass that has it."""
        return {self._attention: self._num_passes * self._num_layers}

    def description(self) -> str:
        """The kernels in use, for logs."""
        return f"products {', '.join(self.products())}; attention {self._attention}"
