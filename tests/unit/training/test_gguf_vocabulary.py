"""The vocabulary that a drafter's GGUF file carries, as llama.cpp asks for it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from slipstream.engine.loading import require_same_tokenizer
from slipstream.errors import ConfigError, VocabularyMismatchError
from slipstream.models.drafts.hparams import Eagle3Hparams
from slipstream.tokenization.tokenizer import load_tokenizer
from slipstream.training.draft_gguf import write_draft_gguf
from slipstream.training.gguf_vocabulary import vocabulary_keys
from slipstream.weights.gguf_reader import read_gguf
from slipstream.weights.open import open_checkpoint
from tests.support.drafts import VOCAB_SIZE, tiny_net
from tests.support.tiny import EOS_ID, write_tiny_checkpoint, write_tiny_tokenizer

PREFIX = "tokenizer.ggml."


def written(path: Path, target: Path, family: str = "dspark") -> Path:
    """A drafter's GGUF file with the vocabulary of a target."""
    net = tiny_net(family)
    keys = vocabulary_keys(target, load_tokenizer(target), VOCAB_SIZE)
    write_draft_gguf(path, net.hparams, net.parameters, net.draft_token_ids, "f32", keys)
    return path


def test_a_tokenizer_json_is_written_as_the_keys_that_llama_cpp_reads(tmp_path: Path) -> None:
    target = write_tiny_checkpoint(tmp_path / "target", num_unnamed=4)
    metadata = read_gguf(written(tmp_path / "draft.gguf", target)).metadata
    assert metadata[f"{PREFIX}model"] == "gpt2"
    assert metadata[f"{PREFIX}pre"] == "gpt-2"
    assert len(metadata[f"{PREFIX}tokens"]) == VOCAB_SIZE
    assert len(metadata[f"{PREFIX}token_type"]) == VOCAB_SIZE
    assert metadata[f"{PREFIX}token_type"][-4:] == [5, 5, 5, 5]
    assert metadata[f"{PREFIX}token_type"][EOS_ID] == 3
    assert metadata[f"{PREFIX}eos_token_id"] == EOS_ID
    assert metadata[f"{PREFIX}merges"][0] == "\u0120 e"


def test_the_vocabulary_of_a_gguf_target_is_passed_on(tmp_path: Path) -> None:
    target = written(tmp_path / "target.gguf", write_tiny_checkpoint(tmp_path / "t"))
    metadata = read_gguf(written(tmp_path / "draft.gguf", target)).metadata
    stored = read_gguf(target).metadata
    names = {name for name in stored if name.startswith("tokenizer.")}
    assert f"{PREFIX}tokens" in names
    assert {name for name in metadata if name.startswith("tokenizer.")} == names
    assert all(metadata[name] == stored[name] for name in names)


@pytest.mark.parametrize("family", ["eagle3", "dspark"])
def test_the_file_is_compared_with_the_target_by_its_tokens(tmp_path: Path, family: str) -> None:
    target = write_tiny_checkpoint(tmp_path / "target")
    checkpoint = open_checkpoint(written(tmp_path / "draft.gguf", target, family))
    assert require_same_tokenizer(checkpoint, load_tokenizer(target))

    other = tmp_path / "other"
    other.mkdir()
    write_tiny_tokenizer(other, VOCAB_SIZE)
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace("<|im_end|>", "<|the_end|>"))
    with pytest.raises(VocabularyMismatchError, match=r"token 2 is '<\|the_end\|>' for the"):
        require_same_tokenizer(checkpoint, load_tokenizer(other))


def test_a_vocabulary_that_gguf_lacks_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = write_tiny_checkpoint(tmp_path / "target")
    tokenizer = load_tokenizer(target)
    layout = json.loads((target / "tokenizer.json").read_text())
    layout["model"]["type"] = "Unigram"
    (target / "tokenizer.json").write_text(json.dumps(layout))
    with caplog.at_level(logging.WARNING):
        assert vocabulary_keys(target, tokenizer, VOCAB_SIZE) == {}
    assert "only byte-level BPE is written" in caplog.text


def test_options_of_eagle_are_written_or_refused(tmp_path: Path) -> None:
    net = tiny_net("eagle3", {"norm_before_residual": True})
    write_draft_gguf(
        tmp_path / "draft.gguf", net.hparams, net.parameters, net.draft_token_ids, "f32", {}
    )
    metadata = read_gguf(tmp_path / "draft.gguf").metadata
    assert metadata["eagle3.norm_before_residual"] is True
    assert metadata["eagle3.norm_before_fc"] is False

    recycling = tiny_net("eagle3", {"norm_output": True})
    assert isinstance(recycling.hparams, Eagle3Hparams)
    with pytest.raises(ConfigError, match="behind the final norm"):
        write_draft_gguf(
            tmp_path / "other.gguf",
            recycling.hparams,
            recycling.parameters,
            torch.arange(VOCAB_SIZE),
            "f32",
            {},
        )
