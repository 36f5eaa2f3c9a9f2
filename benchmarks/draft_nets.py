"""Measure what draft nets cost in a step: taking in committed rows, and drafting.

Random nets of the shapes that `slipstream train` makes by default, for the default target, each in
torch and in native calls, at 500 tokens of context. Usage:

    python benchmarks/draft_nets.py dspark|eagle3 [--ways torch,BF16,Q8_0,Q4_0] [--children 1]
        [--repeats 15] [--out FILE.json]

A line is a way and what was done: least and median milliseconds of the repeats, each behind a read
of 64 MB, which leaves second-level caches as a target's pass does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from slipstream.bench.provenance import read_provenance
from slipstream.clock import SystemClock
from slipstream.config.model import ModelConfig
from slipstream.engine.loading import LoadedModel, load_target
from slipstream.kernels.library import KernelLibrary
from slipstream.kv.storage import KvStorage
from slipstream.models.drafts.ends import ModelEnds
from slipstream.models.drafts.initial import initial_parameters
from slipstream.models.drafts.load import AnyDraftNet, net_class_of, packed_products
from slipstream.models.drafts.packed import PackedProducts
from slipstream.sampling.params import SamplingParams
from slipstream.sampling.sampler import Sampler
from slipstream.sampling.state import initial_state
from slipstream.speculation.drafter import DraftContext, TargetRows
from slipstream.speculation.drafters.block_net import BlockNetDrafter
from slipstream.speculation.drafters.eagle3 import Eagle3Drafter
from slipstream.speculation.learned.parts import DraftNetParts, DraftNetRules, num_request_slots
from slipstream.training.nets import net_hparams
from slipstream.training.settings import NetSettings
from slipstream.weights.gguf_blocks import BLOCK_FORMATS, QuantizedTensor

CONTEXT_LEN, NUM_REQUESTS, REQUEST_SLOTS, FIRST_SLOT = 500, 8, 640, 64
DRAFT_LENS = {"dspark": 7, "eagle3": 5}
DRAFT_VOCAB_SIZE, INTERMEDIATE_SIZE, TAPS = 8192, 1536, (5, 14, 26)
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, ignore_eos=True),
    "T=1": SamplingParams(temperature=1.0, seed=5, ignore_eos=True),
}


def make_net(family: str, way: str, target: LoadedModel) -> AnyDraftNet:
    """A random net; its matrices in torch, or in native kernels in a stored format."""
    settings = NetSettings(
        family=family,  # type: ignore[arg-type]  # argparse has checked it
        num_layers=1 if family == "eagle3" else 2,
        tap_layer_ids=TAPS,
        max_draft_len=DRAFT_LENS[family],
        draft_vocab_size=DRAFT_VOCAB_SIZE,
        intermediate_size=INTERMEDIATE_SIZE,
        mask_token_id=3,
        trains_head=False,
    )
    hparams = net_hparams(settings, target.model.hparams)
    generator = torch.Generator().manual_seed(0)
    parameters = {
        name: tensor.bfloat16()
        if name.endswith("norm.weight")
        else (torch.randn(tensor.shape, generator=generator) * 0.06).bfloat16()
        for name, tensor in initial_parameters(hparams, generator).items()
    }
    order = torch.randperm(hparams.body.vocab_size, generator=generator)
    token_ids = order[:DRAFT_VOCAB_SIZE].sort().values
    ends = ModelEnds(target.model)
    if way == "torch":
        return net_class_of(hparams)(hparams, parameters, ends, token_ids)
    products, rest = packed_products(KernelLibrary(), parameters)
    if way != "BF16":
        stored = {name: _blocks(way, p) for name, p in parameters.items() if name not in rest}
        products = PackedProducts(KernelLibrary(), stored)
    return net_class_of(hparams)(hparams, rest, ends, token_ids, products)


def _blocks(kind: str, weight: Tensor) -> Tensor | QuantizedTensor:
    if weight.ndim != 2 or weight.shape[1] % 32:
        return weight
    block = next(block for block in BLOCK_FORMATS.values() if block.name == kind)
    packed = gguf.quants.quantize(weight.float().numpy(), gguf.GGMLQuantizationType[kind])
    shape = (weight.shape[0], weight.shape[1])
    return QuantizedTensor(block, shape, packed.reshape(-1, block.num_bytes))


class Session:
    """Requests that have a text, and a drafter for them."""

    def __init__(self, family: str, way: str, num_children: int, target: LoadedModel) -> None:
        net = make_net(family, way, target)
        hparams, body = net.hparams, net.hparams.body
        self.mib = net.weight_bytes / 2**20
        num_spare = NUM_REQUESTS * num_request_slots(hparams, num_children, DRAFT_LENS[family])
        num_slots = FIRST_SLOT + NUM_REQUESTS * REQUEST_SLOTS + num_spare
        parts = DraftNetParts(
            net,
            KvStorage(num_slots, body.num_layers, body.kv_heads, body.head_dim, torch.bfloat16),
            Sampler(target.vocab_size, target.tokenizer.eos_token_ids),
            max_len=2048,
            num_spare_slots=num_spare,
        )
        rules = DraftNetRules(num_children, DRAFT_LENS[family], least_score=0.0)
        kind = Eagle3Drafter if family == "eagle3" else BlockNetDrafter
        self.drafter = kind("net", parts, rules)
        self._hidden_size = hparams.target_hidden_size
        self._texts = np.random.default_rng(1).integers(10, 40000, (NUM_REQUESTS, REQUEST_SLOTS))
        self.absorb(NUM_REQUESTS, CONTEXT_LEN)

    def absorb(self, num_requests: int, count: int) -> Callable[[], object]:
        """Take in the last `count` rows of requests; returns what does it again."""
        taps = {layer: torch.randn(count * num_requests, self._hidden_size) for layer in TAPS}
        rows = [
            TargetRows(
                request_id=str(index),
                slots=self._slots(index),
                next_tokens=self._texts[index, CONTEXT_LEN - count + 1 : CONTEXT_LEN + 1].tolist(),
                rows=np.arange(index * count, (index + 1) * count),
                taps=taps,
            )
            for index in range(num_requests)
        ]
        self.drafter.absorb(rows)
        return lambda: self.drafter.absorb(rows)

    def propose(self, num_requests: int, params: SamplingParams) -> Callable[[], object]:
        """What drafts for requests."""
        contexts = [
            DraftContext(
                request_id=str(index),
                tokens=self._texts[index, : CONTEXT_LEN + 1].tolist(),
                prompt_len=100,
                params=params,
                state=initial_state(params, ()),
                seed=5 + index,
                salt="",
                max_draft_len=8,
                max_draft_nodes=32,
                slots=self._slots(index),
            )
            for index in range(num_requests)
        ]
        return lambda: self.drafter.propose(contexts)

    def _slots(self, index: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        first = FIRST_SLOT + index * REQUEST_SLOTS
        return np.arange(first, first + CONTEXT_LEN, dtype=np.int64)


def measure(action: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Least and median milliseconds."""
    other = np.zeros(8 * 2**20)
    action()
    times = []
    for _ in range(repeats):
        other.sum()
        started = time.perf_counter()
        action()
        times.append(1e3 * (time.perf_counter() - started))
    return min(times), statistics.median(times)


def main() -> None:
    """Measure every way, print a line each, write the file if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("family", choices=sorted(DRAFT_LENS))
    parser.add_argument("--ways", default="torch,BF16,Q8_0,Q4_0")
    parser.add_argument("--children", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    command = ["python", "benchmarks/draft_nets.py", args.family, "--ways", args.ways]
    command += ["--children", str(args.children), "--repeats", str(args.repeats)]
    provenance = read_provenance(command, [], SystemClock())
    target = load_target(ModelConfig())
    lines = []
    for way in args.ways.split(","):
        session = Session(args.family, way, args.children, target)
        done = {
            f"absorb {requests} x {rows}": session.absorb(requests, rows)
            for requests, rows in ((1, 1), (1, 4), (1, 8), (8, 1), (8, 4))
        }
        for name, params in PARAMS.items():
            for requests in (1, NUM_REQUESTS):
                done[f"propose {requests} {name}"] = session.propose(requests, params)
        for what, action in done.items():
            least, median = measure(action, args.repeats)
            lines.append({"way": way, "what": what, "least_ms": least, "median_ms": median})
            sys.stdout.write(f"{way:6} {what:22} {least:8.3f} {median:8.3f}\n")
            sys.stdout.flush()
    if args.out is not None:
        document = {"provenance": asdict(provenance), "lines": lines}
        args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
