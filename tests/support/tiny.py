"""Tiny random checkpoints in the layout of the public ones, with a tokenizer, for any test."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS_ID, EOS_ID = 1, 2

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}


@dataclass(frozen=True, slots=True)
class TinySizes:
    """Sizes of a tiny checkpoint; every field can be given to `write_tiny_checkpoint` by name.

    `num_unnamed` last ids of the vocabulary have logits but no token, as in padded public models.
    `sliding_window` is read by mistral and gemma3_text only.
    """

    vocab_size: int = 320
    hidden_size: int = 64
    intermediate_size: int = 128
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    max_position_embeddings: int = 512
    sliding_window: int = 16
    sliding_window_pattern: int = 2
    tie_word_embeddings: bool | None = None
    num_unnamed: int = 0


def write_tiny_checkpoint(
    path: Path,
    family: str = "llama",
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **sizes: Any,  # the fields of TinySizes, whose types differ
) -> Path:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json to `path`.

    The weights depend on (family, seed, sizes) alone; logits have a standard deviation near 2.
    Ids: 0 `<|endoftext|>`, 1 `<|im_start|>` (bos), 2 `<|im_end|>` (eos), 3 + b for byte b, then
    tokens of two letters. Returns `path`, so that the call fits into an expression.
    """
    shape = replace(TinySizes(), **sizes)
    if shape.tie_word_embeddings is None:
        shape = replace(shape, tie_word_embeddings=family in ("qwen2", "gemma3_text"))
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(tiny_config(family, shape, dtype), indent=1))
    save_file(
        tiny_tensors(family, shape, seed, dtype), path / "model.safetensors", {"format": "pt"}
    )
    write_tiny_tokenizer(path, shape.vocab_size - shape.num_unnamed)
    return path


def tiny_config(family: str, sizes: TinySizes, dtype: torch.dtype) -> dict[str, Any]:
    """The content of config.json, with the fields that public checkpoints of the family carry."""
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "attention_dropout": 0.0,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": sizes.intermediate_size,
        "max_position_embeddings": sizes.max_position_embeddings,
        "num_attention_heads": sizes.num_heads,
        "num_hidden_layers": sizes.num_layers,
        "num_key_value_heads": sizes.num_kv_heads,
        "head_dim": sizes.head_dim,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-5 if family in ("llama", "mistral") else 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": sizes.tie_word_embeddings,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "use_cache": True,
        "vocab_size": sizes.vocab_size,
    }
    if family == "llama":
        config |= {"attention_bias": False, "mlp_bias": False}
    elif family == "mistral":
        config |= {"sliding_window": sizes.sliding_window}
    elif family == "gemma3_text":
        del config["hidden_act"]
        config |= {
            "attention_bias": False,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": sizes.head_dim,
            "rope_local_base_freq": 10000.0,
            "rope_theta": 1000000.0,
            "sliding_window": sizes.sliding_window,
            "sliding_window_pattern": sizes.sliding_window_pattern,
        }
    else:
        config |= {"max_window_layers": 28, "sliding_window": None, "use_sliding_window": False}
    return config


def tiny_tensors(
    family: str, sizes: TinySizes, seed: int, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Random weights under their public names; norm weights and biases are not trivial."""
    generator = torch.Generator().manual_seed(seed * 1009 + FAMILIES.index(family))
    is_gemma = family == "gemma3_text"
    hidden, q_size = sizes.hidden_size, sizes.num_heads * sizes.head_dim
    kv_size = sizes.num_kv_heads * sizes.head_dim
    tensors: dict[str, torch.Tensor] = {}

    def draw(name: str, *shape: int, std: float, mean: float = 0.0) -> None:
        values = torch.randn(shape, generator=generator) * std + mean
        tensors[name] = values.to(dtype)

    def matrix(name: str, num_out: int, num_in: int, gain: float) -> None:
        draw(f"{name}.weight", num_out, num_in, std=gain / num_in**0.5)

    def norm(name: str, size: int, mean: float = 1.0) -> None:
        draw(f"{name}.weight", size, std=0.25, mean=mean - 1.0 if is_gemma else mean)

    draw("model.embed_tokens.weight", sizes.vocab_size, hidden, std=(0.7 if is_gemma else 2.0) / 8)
    for layer in range(sizes.num_layers):
        prefix = f"model.layers.{layer}"
        norm(f"{prefix}.input_layernorm", hidden)
        for short, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            matrix(f"{prefix}.self_attn.{short}_proj", size, hidden, gain=1.3)
            if family == "qwen2":
                draw(f"{prefix}.self_attn.{short}_proj.bias", size, std=0.2)
        if family in ("qwen3", "gemma3_text"):
            norm(f"{prefix}.self_attn.q_norm", sizes.head_dim)
            norm(f"{prefix}.self_attn.k_norm", sizes.head_dim)
        matrix(f"{prefix}.self_attn.o_proj", hidden, q_size, gain=2.0)
        norm(f"{prefix}.post_attention_layernorm", hidden)
        if is_gemma:
            norm(f"{prefix}.pre_feedforward_layernorm", hidden)
            norm(f"{prefix}.post_feedforward_layernorm", hidden)
        matrix(f"{prefix}.mlp.gate_proj", sizes.intermediate_size, hidden, gain=1.3)
        matrix(f"{prefix}.mlp.up_proj", sizes.intermediate_size, hidden, gain=1.3)
        matrix(f"{prefix}.mlp.down_proj", hidden, sizes.intermediate_size, gain=2.0)
    norm("model.norm", hidden, mean=3.0 if is_gemma else 1.0)
    if not sizes.tie_word_embeddings:
        matrix("lm_head", sizes.vocab_size, hidden, gain=2.0)
    return tensors


def write_tiny_tokenizer(path: Path, num_tokens: int) -> None:
    """Write a byte-level tokenizer with `num_tokens` >= 259 ids and a ChatML template."""
    alphabet = _byte_alphabet()
    vocab = {token: index for index, token in enumerate(SPECIAL_TOKENS)}
    for byte in range(256):
        vocab[alphabet[byte]] = len(vocab)
    merges = [
        (first, second)
        for first in "\u0120etaoinshrdlu"  # U+0120 stands for a space
        for second in "etaoinshrdlucmfwypvbgk"
    ][: num_tokens - len(vocab)]
    for first, second in merges:
        vocab[first + second] = len(vocab)
    while len(vocab) < num_tokens:
        vocab[f"<|unused_{len(vocab)}|>"] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[BOS_ID],
        "eos_token": SPECIAL_TOKENS[EOS_ID],
        "pad_token": SPECIAL_TOKENS[0],
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's table: printable bytes stand for themselves, the others for letters from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable}
    return table | {byte: chr(0x100 + rank) for rank, byte in enumerate(others)}
