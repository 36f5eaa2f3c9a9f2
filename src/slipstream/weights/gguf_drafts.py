"""What config.json would say of a draft net in a GGUF file, beside what every model has.

Source: llama.cpp, architectures `eagle3`, and `dflash` for DFlash, DFlash 2 and DSpark.
"""

from __future__ import annotations

from typing import Any

from slipstream.errors import WeightsError
from slipstream.weights.gguf_metadata import MetadataReader, shortest
from slipstream.weights.gguf_reader import GgufFile

_COUNTS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
_FACTORS = {
    "logit_scale": "output_multiplier",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_scale": "input_embedding_scale",
}
_EAGLE_FLAGS = ("norm_before_residual", "norm_before_fc")


def draft_fields(file: GgufFile, reader: MetadataReader) -> dict[str, Any]:  # Any: JSON
    """The family's own fields; taps counted as the inputs of layers, as the file does.

    Raises:
        WeightsError: A key is missing or of the wrong type.
    """
    layers = reader.value("target_layers")
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        raise WeightsError(f"{file.path} names no target_layers, the states that the drafter reads")
    fields: dict[str, Any] = {"hidden_act": "silu", "aux_hidden_state_layer_ids": layers}
    if "d2t" in file.tensors:
        fields["draft_vocab_size"] = file.tensors["d2t"].shape[0]
    for name in (*_COUNTS, "block_size", "target_hidden_size"):
        if (count := reader.optional(name, 0, int)) > 0:
            fields[name] = count
    for name in (*_EAGLE_FLAGS, "sample_from_anchor"):
        if (flag := reader.value(name)) is not None:
            fields[name] = flag
    if (is_causal := reader.value("attention.causal")) is not None:
        fields["is_causal"] = is_causal
    for name, public in _FACTORS.items():
        if factor := reader.optional(name, 0.0, float):
            fields[public] = shortest(factor)
    mask = file.metadata.get("tokenizer.ggml.mask_token_id")
    if mask is not None:
        fields["mask_token_id"] = mask
    return fields | _window_fields(reader) | _markov_fields(file)


def _window_fields(reader: MetadataReader) -> dict[str, Any]:  # Any: JSON
    window = reader.optional("attention.sliding_window", 0, int)
    pattern = reader.value("attention.sliding_window_pattern")
    if not window:
        return {}
    fields: dict[str, Any] = {"sliding_window": window, "use_sliding_window": True}
    fields["max_window_layers"] = 0  # without a pattern every layer slides
    if isinstance(pattern, list):
        kinds = {True: "sliding_attention", False: "full_attention"}
        fields["layer_types"] = [kinds[bool(slides)] for slides in pattern]
    return fields


def _markov_fields(file: GgufFile) -> dict[str, Any]:  # Any: JSON
    """DSpark's heads, told by their tensors."""
    markov = file.tensors.get("markov_w2.weight")
    if markov is None:
        return {}
    rank = markov.shape[1]
    fields: dict[str, Any] = {"markov_rank": rank, "markov_head_type": "vanilla"}
    confidence, context = file.tensors.get("conf_proj.weight"), file.tensors.get("fc.weight")
    if confidence is not None and context is not None:
        fields["enable_confidence_head"] = True
        fields["confidence_head_with_markov"] = confidence.shape[-1] > context.shape[0]
    return fields
