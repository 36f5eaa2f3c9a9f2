"""Multi-token-prediction heads in a folder of their own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from slipstream.kernels.library import KernelLibrary
from slipstream.kv.cache import KvCache
from slipstream.models.load import load_model, read_hparams
from slipstream.models.mtp.load import load_heads
from slipstream.sampling.sampler import Sampler
from slipstream.speculation.drafters.mtp import MtpDrafter, num_seat_slots
from slipstream.speculation.learned.parts import DraftNetRules, MtpParts
from slipstream.weights.open import open_checkpoint
from tests.support.draft_nets import EOS, NET_VOCAB_SIZE, VOCAB_SIZE, FedDrafter
from tests.support.drafts import HIDDEN_SIZE
from tests.support.tiny import write_tiny_checkpoint
from tests.support.tiny_families import HEAD_DIM, KV_HEADS, NUM_HEADS


def write_head_folder(
    path: Path,
    target: Path,
    *,
    draft_token_ids: list[int] | None = None,
    changes: Mapping[str, Any] | None = None,  # Any: JSON
) -> Path:
    """A head with a Llama layer for the model in `target`; returns `path`.

    Args:
        draft_token_ids: Target tokens that it knows; None is all.
        changes: Fields of config.json.
    """
    hparams = read_hparams(json.loads((target / "config.json").read_text()))
    hidden, inner = hparams.hidden_size, 48
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "max_position_embeddings": hparams.max_positions,
        "mtp_num_hidden_layers": 1,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": hparams.num_layers,
        "rms_norm_eps": 1e-6,
        "vocab_size": hparams.vocab_size,
    }
    layer = "mtp.layers.0"
    shapes = {
        "mtp.fc": (hidden, 2 * hidden),
        f"{layer}.self_attn.q_proj": (NUM_HEADS * HEAD_DIM, hidden),
        f"{layer}.self_attn.k_proj": (KV_HEADS * HEAD_DIM, hidden),
        f"{layer}.self_attn.v_proj": (KV_HEADS * HEAD_DIM, hidden),
        f"{layer}.self_attn.o_proj": (hidden, NUM_HEADS * HEAD_DIM),
        f"{layer}.mlp.gate_proj": (inner, hidden),
        f"{layer}.mlp.up_proj": (inner, hidden),
        f"{layer}.mlp.down_proj": (hidden, inner),
    }
    norms = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
    layer_norms = (f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
    generator = torch.Generator().manual_seed(7)
    tensors = {
        f"{name}.weight": torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        for name, shape in shapes.items()
    } | {f"{name}.weight": torch.ones(hidden) for name in (*norms, *layer_norms)}
    if draft_token_ids is not None:
        known = torch.tensor(draft_token_ids)
        config["draft_vocab_size"] = len(known)
        tensors["d2t"] = known - torch.arange(len(known))
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config | dict(changes or {})))
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


def make_mtp_drafter(
    *,
    name: str = "mtp",
    num_seats: int = 8,
    kernels: KernelLibrary | None = None,
    is_target_native: bool = False,
    draft_token_ids: list[int] | None = None,
    kv_dtype: torch.dtype = torch.float32,
) -> FedDrafter:
    """A drafter with a tiny random head over made-up states.

    Args:
        num_seats: Requests that it can draft for at a time.
        kernels: Multiply, in bfloat16; None is torch in float32.
        is_target_native: With `kernels`, the target has them too, so that native calls draft.
    """
    dtype = torch.float32 if kernels is None else torch.bfloat16
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny_checkpoint(
            Path(folder) / "target", hidden_size=HIDDEN_SIZE, vocab_size=NET_VOCAB_SIZE
        )
        target = load_model(
            open_checkpoint(path), dtype, kernels=kernels if is_target_native else None
        )
        head = write_head_folder(Path(folder) / "head", path, draft_token_ids=draft_token_ids)
        heads = load_heads(open_checkpoint(head), target, dtype, kernels)
    kv = KvCache(512, 4)
    num_spare = num_seats * num_seat_slots(4)
    parts = MtpParts(
        heads,
        heads.storage(kv.num_slots + num_spare, kv_dtype),
        Sampler(VOCAB_SIZE, (EOS,)),
        max_len=512,
        num_spare_slots=num_spare,
        last_layer_id=target.hparams.num_layers - 1,
    )
    rules = DraftNetRules(num_children=1, max_draft_len=4, least_score=0.0)
    return FedDrafter(MtpDrafter(name, parts, rules), kv)
