"""An EAGLE-3 export in the `speculators` layout, read as vLLM 0.32 reads it.

Written anew from `vllm/model_executor/models/llama_eagle3.py` and `v1/spec_decode`, so that our own
reader's conventions cannot hide a mistake of our writer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from slipstream.models.drafts.eagle3 import Eagle3Net
from slipstream.models.drafts.parts import LayerKv, empty_context
from slipstream.training.publish import export_run
from slipstream.training.run_folder import Progress, RunFolder, RunRecord
from slipstream.training.session import RestoredRun, TrainingTarget, restore_run, write_fixed
from tests.support.training import fixed_parts, tiny_net, tiny_settings

NUM_TOKENS, NUM_STEPS = 7, 3


@dataclass
class VllmEagle3:
    """The net's pass over rows; keys and values stay."""

    folder: Path
    embeddings: Tensor
    config: dict[str, Any] = field(init=False)  # Any: JSON
    tensors: dict[str, Tensor] = field(init=False)
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        own = json.loads((self.folder / "config.json").read_text())
        kept = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
        assert own["speculators_model_type"] == "eagle3"
        assert not any(own.get(name, name == "norm_before_residual") for name in kept)
        self.config = own["transformer_layer_config"]
        self.config["outputs"] = own["eagle_aux_hidden_state_layer_ids"]
        self.tensors = load_file(self.folder / "model.safetensors")

    def norm(self, name: str, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.tensors[f"{name}.weight"]

    def product(self, name: str, x: Tensor) -> Tensor:
        return x @ self.tensors[f"{name}.weight"].T

    def heads(self, name: str, x: Tensor, position: int) -> Tensor:
        size = self.config["head_dim"]
        half = self.product(f"layers.0.self_attn.{name}", x).view(-1, 2, size // 2)
        angles = position * self.config["rope_theta"] ** (-torch.arange(0, size, 2) / size)
        low, high = half[:, 0], half[:, 1]
        turned = (
            low * angles.cos() - high * angles.sin(),
            high * angles.cos() + low * angles.sin(),
        )
        return torch.cat(turned, -1)

    def row(self, token: int, hidden: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Logits, and what the row of the next step reads."""
        embedded = self.norm("layers.0.input_layernorm", self.embeddings[token].float())
        entered = torch.cat((embedded, self.norm("layers.0.hidden_norm", hidden)))
        size, groups = self.config["head_dim"], self.config["num_key_value_heads"]
        self.keys.append(self.heads("k_proj", entered, position))
        value = self.product("layers.0.self_attn.v_proj", entered).view(groups, size)
        self.values.append(value)
        queries = self.heads("q_proj", entered, position).view(groups, -1, size)
        scores = torch.einsum("gqd,sgd->gqs", queries, torch.stack(self.keys)) * size**-0.5
        mixed = torch.einsum("gqs,sgd->gqd", scores.softmax(-1), torch.stack(self.values))
        residual = hidden + self.product("layers.0.self_attn.o_proj", mixed.flatten())
        x = self.norm("layers.0.post_attention_layernorm", residual)
        gate = functional.silu(self.product("layers.0.mlp.gate_proj", x))
        up = self.product("layers.0.mlp.up_proj", x)
        residual = residual + self.product("layers.0.mlp.down_proj", gate * up)
        return self.product("lm_head", self.norm("norm", residual)), residual

    def target_token(self, logits: Tensor) -> int:
        place = int(logits.argmax())
        return place + int(self.tensors["d2t"][place])


def a_run(target: TrainingTarget, path: Path) -> RestoredRun:
    settings = tiny_settings("eagle3")
    folder = RunFolder(path)
    folder.begin(RunRecord(target=target.identity, dataset_sha256="0" * 64, settings=settings))
    write_fixed(folder, fixed_parts(settings))
    trained = tiny_net(settings, target).trained()
    folder.save(Progress(), {f"parameter/{name}": p.detach() for name, p in trained.items()})
    return restore_run(path, target)


def test_vllm_chains_the_drafts_of_the_net_that_was_trained(
    target: TrainingTarget, tmp_path: Path
) -> None:
    run = a_run(target, tmp_path / "run")
    export_run(run, target, tmp_path / "draft", "speculators", "float32", {})
    theirs = VllmEagle3(tmp_path / "draft", run.net.ends.embeddings)
    ours = run.net.copy_in(torch.float32)
    assert isinstance(ours, Eagle3Net)
    generator = torch.Generator().manual_seed(5)
    layers = [torch.randn(NUM_TOKENS, 32, generator=generator) for _ in range(3)]  # by input
    tokens = torch.randint(0, 96, (NUM_TOKENS + 1,), generator=generator)

    states = torch.cat([layers[layer] for layer in sorted(theirs.config["outputs"])], -1)
    for place in range(NUM_TOKENS):
        fused = theirs.product("fc", states[place])
        logits, hidden = theirs.row(int(tokens[place + 1]), fused, place)
    taps = torch.cat([layers[tap + 1] for tap in ours.hparams.tap_layer_ids or ()], -1)
    rows = ours.extend(
        tokens[1:].view(1, 1, -1),
        ours.fuse(taps).view(1, 1, NUM_TOKENS, -1),
        torch.arange(NUM_TOKENS).view(1, 1, -1),
        empty_context(ours.hparams.body, 1, 1),
        (),
        torch.ones(NUM_TOKENS, NUM_TOKENS, dtype=torch.bool).tril(),
    )
    layer = rows.layers[0]
    for step in range(NUM_STEPS):
        expected = ours.head(rows.normed[0, 0, -1])
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)
        token = theirs.target_token(logits)
        assert token == int(ours.target_token_ids()[expected.argmax()])
        position = NUM_TOKENS + step
        logits, hidden = theirs.row(token, hidden, position)
        rows = ours.extend(
            torch.tensor([[[token]]]),
            rows.hidden[:, :, -1:],
            torch.tensor([[[position]]]),
            empty_context(ours.hparams.body, 1, 1),
            [layer],
            torch.ones(1, position + 1, dtype=torch.bool),
        )
        new = rows.layers[0]
        layer = LayerKv(
            torch.cat((layer.keys, new.keys), 2), torch.cat((layer.values, new.values), 2)
        )
