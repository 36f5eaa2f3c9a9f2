"""Checks of the machine, of the target's files, and of the engine once it runs."""

from __future__ import annotations

from pathlib import Path

from slipstream.config.schema import Config
from slipstream.doctor.findings import Finding, wrong
from slipstream.engine.llm import LLM
from slipstream.errors import SlipstreamError
from slipstream.execution.cores import choose_num_threads, read_cores
from slipstream.kernels.serving import Serving, foresee_serving
from slipstream.weights.sources import cache_of, source_of
from slipstream.weights.summary import summarize

_GIB = 2**30
_NATIVE = "native"
_TEST_MESSAGE = {"role": "user", "content": "Hello"}


def check_threads(config: Config) -> Finding:
    """How many threads compute, and on what."""
    cores = read_cores()
    try:
        count = choose_num_threads(config.engine.num_threads, cores)
    except SlipstreamError as error:
        return wrong("threads", error)
    return Finding("threads", "ok", f"{count} of {cores}")


def check_files(config: Config, path: Path) -> list[Finding]:
    """What the target's weights are, whether they are as fetched, and who multiplies them."""
    try:
        summary = summarize(path)
    except SlipstreamError as error:
        return [wrong("target files", error)]
    told = f"{summary.family}, {summary.layout}, {summary.num_bytes / 1e6:.1f} MB in {path}"
    files = _check_unchanged(config, path) or Finding("target files", "ok", told)
    model = config.model
    serving = foresee_serving(summary.stored_as, summary.head_dim, model.dtype, model.activations)
    return [files, _check_kernels(serving)]


def _check_kernels(serving: Serving) -> Finding:
    if serving.activations is None:
        return Finding(
            "kernels",
            "wrong",
            "nothing here takes int8 activations with these weights",
            "set model.activations to auto",
        )
    if serving.kernels.startswith(_NATIVE):
        return Finding("kernels", "ok", f"{serving.kernels}, activations {serving.activations}")
    return Finding("kernels", "warning", f"{serving.kernels}; answers are as exact")


def check_engine(llm: LLM) -> list[Finding]:
    """Memory as it was split, and whether chat messages can be rendered."""
    info = llm.engine.info
    num_longest = info.kv_tokens / info.max_model_len
    memory = Finding(
        "memory",
        "ok",
        f"weights {info.weight_bytes / _GIB:.2f} GiB, room for {info.kv_tokens:,} tokens: "
        f"{num_longest:.1f} requests of {info.max_model_len:,}",
    )
    try:
        llm.render([_TEST_MESSAGE])
    except SlipstreamError as error:
        template = Finding("chat template", "warning", error.message, error.hint)
    else:
        template = Finding("chat template", "ok", "takes messages")
    return [memory, _check_tokenizer(llm), template]


def _check_tokenizer(llm: LLM) -> Finding:
    info, tokenizer = llm.engine.info, llm.tokenizer
    sizes = f"{tokenizer.vocab_size:,} tokens, {info.vocab_size:,} of them can be drawn"
    ends = ", ".join(repr(tokenizer.token_text(token)) for token in info.eos_token_ids)
    if tokenizer.vocab_size != info.vocab_size:
        hint = "the tokenizer may be another model's: compare it with the published one"
        return Finding("tokenizer", "warning", sizes, hint)
    if not ends:
        hint = "give a tokenizer with an end token by model.tokenizer, or always send max_tokens"
        return Finding("tokenizer", "warning", f"{sizes}; none ends an answer", hint)
    return Finding("tokenizer", "ok", f"{sizes}; {ends} ends an answer")


def _check_unchanged(config: Config, path: Path) -> Finding | None:
    """Of weights that were fetched: whether somebody has touched them since."""
    entry = cache_of(config.model).entry(source_of(config.model).name)
    if entry is None or entry.is_unchanged():
        return None
    return Finding(
        "target files",
        "wrong",
        f"{path} is not as it was when it was fetched: {entry.problem or 'its files have changed'}",
        f"`slipstream models verify {config.model.source}` compares checksums; "
        f"`slipstream models pull --force {config.model.source}` fetches it again",
    )
