"""Finding and reading the tokenizer of a checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from slipstream.errors import InvalidRequestError, TokenizerError
from slipstream.tokenization.tokenizer import load_tokenizer
from slipstream.weights.gguf_reader import read_gguf
from tests.support.gguf_files import add_metadata
from tests.support.tiny import CHAT_TEMPLATE, EOS_ID, SPECIAL_TOKENS, write_tiny_tokenizer
from tests.unit.tokenization.vocabularies import Metadata, byte_level_metadata

NUM_TOKENS = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny_tokenizer(tmp_path, NUM_TOKENS)
    return tmp_path


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def update_json(path: Path, **changes: Any) -> None:
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | changes)


def write_gguf(path: Path, metadata: Metadata) -> None:
    writer = GGUFWriter(str(path), "llama")
    for key, value in metadata.items():
        add_metadata(writer, key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class TestFolder:
    def test_text_survives_encoding_and_decoding(self, folder: Path) -> None:
        tokenizer = load_tokenizer(folder)
        text = "the sea, \u4f60\u597d \U0001f642\n\n  12"

        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_special_tokens_and_template_come_from_the_settings(self, folder: Path) -> None:
        tokenizer = load_tokenizer(folder)

        assert tokenizer.special_ids == {0, 1, 2}
        assert tokenizer.bos_token_id == 1
        assert tokenizer.named_tokens["eos_token"] == SPECIAL_TOKENS[EOS_ID]
        assert tokenizer.chat_templates == {"default": CHAT_TEMPLATE}
        assert tokenizer.vocab_size == NUM_TOKENS

    def test_generation_settings_list_the_ends_of_text(self, folder: Path) -> None:
        write_json(folder / "config.json", {"eos_token_id": 7})
        write_json(folder / "generation_config.json", {"eos_token_id": [0, 5]})

        assert load_tokenizer(folder).eos_token_ids == (0, 5, EOS_ID)

    def test_the_model_config_lists_them_where_generation_settings_do_not(
        self, folder: Path
    ) -> None:
        write_json(folder / "config.json", {"text_config": {"eos_token_id": [9]}})
        write_json(folder / "generation_config.json", {"temperature": 0.6})

        assert load_tokenizer(folder).eos_token_ids == (9, EOS_ID)

    def test_an_end_of_text_outside_the_vocabulary_is_refused(self, folder: Path) -> None:
        write_json(folder / "config.json", {"eos_token_id": 128001})

        with pytest.raises(TokenizerError, match=r"end-of-text token is 128001.*0 to 299"):
            load_tokenizer(folder)

    def test_saved_truncation_and_padding_do_not_touch_prompts(self, folder: Path) -> None:
        backend = Backend.from_file(str(folder / "tokenizer.json"))
        backend.enable_truncation(4)
        backend.enable_padding(length=4)
        backend.save(str(folder / "tokenizer.json"))

        assert len(load_tokenizer(folder).encode("zzzzzzzz")) == 8
        assert len(load_tokenizer(folder).encode("z")) == 1

    def test_tokens_that_only_the_settings_know_are_added(self, folder: Path) -> None:
        entry = {"content": "<tool>", "special": True}
        update_json(folder / "tokenizer_config.json", added_tokens_decoder={str(NUM_TOKENS): entry})
        tokenizer = load_tokenizer(folder)

        assert tokenizer.encode("<tool>") == [NUM_TOKENS]
        assert NUM_TOKENS in tokenizer.special_ids

    def test_settings_that_contradict_the_vocabulary_are_refused(self, folder: Path) -> None:
        update_json(
            folder / "tokenizer_config.json", added_tokens_decoder={"999": {"content": "<tool>"}}
        )

        with pytest.raises(TokenizerError, match=r"'<tool>' the id 999, .* it would be 300"):
            load_tokenizer(folder)

    def test_template_files_come_before_the_settings(self, folder: Path) -> None:
        (folder / "chat_template.jinja").write_text("from a file")
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")

        assert load_tokenizer(folder).chat_templates == {
            "default": "from a file",
            "tool_use": "with tools",
        }

    def test_named_templates_in_the_settings_keep_their_names(self, folder: Path) -> None:
        named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
        update_json(folder / "tokenizer_config.json", chat_template=named)

        assert load_tokenizer(folder).chat_templates == {"default": "A", "tool_use": "B"}

    def test_the_models_own_post_processor_adds_its_tokens(self, folder: Path) -> None:
        backend = Backend.from_file(str(folder / "tokenizer.json"))
        backend.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
        backend.save(str(folder / "tokenizer.json"))
        tokenizer = load_tokenizer(folder)

        assert tokenizer.encode("z")[0] == 1
        assert tokenizer.encode("z", add_special=False)[0] != 1

    def test_a_weights_file_leads_to_the_folder(self, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"")

        assert load_tokenizer(folder / "model.safetensors").vocab_size == NUM_TOKENS

    def test_a_sentencepiece_tokenizer_drops_the_space_it_puts_first(self, tmp_path: Path) -> None:
        vocab = {"<unk>": 0, "\u2581": 1, "a": 2, "\u2581a": 3, "<0xE4>": 4}
        backend = Backend(
            models.BPE(vocab=vocab, merges=[("\u2581", "a")], unk_token="<unk>", byte_fallback=True)
        )
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
        backend.decoder = decoders.Sequence(
            [
                decoders.Replace("\u2581", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        backend.save(str(tmp_path / "tokenizer.json"))
        tokenizer = load_tokenizer(tmp_path)

        assert tokenizer.encode("a a") == [3, 3]
        assert tokenizer.decode([3, 3]) == "a a"
        assert tokenizer.token_bytes(4) == b"\xe4"

    def test_a_metaspace_tokenizer_is_read_too(self, tmp_path: Path) -> None:
        backend = Backend(models.BPE(vocab={"\u2581": 0, "a": 1}, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
        backend.save(str(tmp_path / "tokenizer.json"))
        tokenizer = load_tokenizer(tmp_path)

        assert tokenizer.decode(tokenizer.encode("a a")) == "a a"

    def test_a_tokenizer_that_cannot_be_decoded_exactly_is_refused(self, tmp_path: Path) -> None:
        backend = Backend(models.WordPiece(vocab={"[UNK]": 0}, unk_token="[UNK]"))
        backend.decoder = decoders.WordPiece()
        backend.save(str(tmp_path / "tokenizer.json"))

        with pytest.raises(TokenizerError, match="decodes with WordPiece; supported are"):
            load_tokenizer(tmp_path)

    @pytest.mark.parametrize("content", ["{", "[]", '{"added_tokens_decoder": {"x": 1}}'])
    def test_broken_settings_are_refused_with_the_file(self, folder: Path, content: str) -> None:
        (folder / "tokenizer_config.json").write_text(content)

        with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
            load_tokenizer(folder)

    def test_a_broken_tokenizer_file_is_refused_with_its_path(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")

        with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
            load_tokenizer(folder)

    def test_a_folder_without_a_tokenizer_is_refused_with_a_hint(self, tmp_path: Path) -> None:
        with pytest.raises(TokenizerError, match="has no tokenizer") as refusal:
            load_tokenizer(tmp_path)

        assert refusal.value.hint is not None


class TestGguf:
    def test_the_files_own_vocabulary_is_used(self, tmp_path: Path) -> None:
        write_gguf(tmp_path / "model.gguf", byte_level_metadata())

        assert load_tokenizer(tmp_path / "model.gguf").eos_token_ids == (2, 0)
        assert load_tokenizer(tmp_path).eos_token_ids == (2, 0)

    def test_it_comes_before_a_tokenizer_file_beside_it(self, folder: Path) -> None:
        write_gguf(folder / "model.gguf", byte_level_metadata())

        assert load_tokenizer(folder / "model.gguf").vocab_size == 265

    def test_a_file_with_weights_only_uses_the_tokenizer_beside_it(self, folder: Path) -> None:
        write_gguf(folder / "model.gguf", {})

        assert load_tokenizer(folder / "model.gguf").vocab_size == NUM_TOKENS

    def test_a_file_with_weights_only_and_nothing_beside_it_is_refused(
        self, tmp_path: Path
    ) -> None:
        write_gguf(tmp_path / "model.gguf", {})

        with pytest.raises(TokenizerError, match="holds weights only"):
            load_tokenizer(tmp_path / "model.gguf")

    def test_a_corrupt_file_is_refused_with_its_path(self, tmp_path: Path) -> None:
        (tmp_path / "model.gguf").write_bytes(b"GGUFgarbage")

        with pytest.raises(TokenizerError, match=r"no tokenizer from .*model\.gguf"):
            load_tokenizer(tmp_path / "model.gguf")


class TestTokenizer:
    def test_padding_ids_have_no_bytes(self, folder: Path) -> None:
        tokenizer = load_tokenizer(folder)

        assert tokenizer.token_bytes(NUM_TOKENS + 20) == b""
        assert tokenizer.decode([NUM_TOKENS + 20]) == ""

    def test_a_negative_id_is_refused(self, folder: Path) -> None:
        with pytest.raises(TokenizerError, match="0 or more, got -1"):
            load_tokenizer(folder).token_bytes(-1)

    def test_a_lone_surrogate_is_refused(self, folder: Path) -> None:
        with pytest.raises(InvalidRequestError, match=r"character 1 .*U\+D83D"):
            load_tokenizer(folder).encode("a\ud83d")

    def test_a_part_of_a_character_shows_as_a_replacement(self, folder: Path) -> None:
        assert load_tokenizer(folder).token_text(3 + 0xE4) == "\ufffd"

    def test_invalid_bytes_decode_like_python_replaces_them(self, folder: Path) -> None:
        data = b"a\xe4\xbd\xf0\x9f\x80"

        decoded = load_tokenizer(folder).decode([3 + byte for byte in data])

        assert decoded == data.decode(errors="replace")


def test_tokenization_does_not_import_torch() -> None:
    code = (
        "import sys, slipstream.tokenization.tokenizer, slipstream.tokenization.chat_template,"
        " slipstream.tokenization.detokenizer, slipstream.tokenization.stop,"
        " slipstream.tokenization.vocabulary; sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_metadata_that_was_read_before_are_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    write_gguf(path, byte_level_metadata())
    from_file = load_tokenizer(path)
    metadata = read_gguf(path).metadata
    path.write_bytes(b"")
    again = load_tokenizer(path, metadata)
    assert again.fingerprint_items() == from_file.fingerprint_items()
    assert again.encode("the sea") == from_file.encode("the sea")
