"""What other deployment guides' configurations say can be said here, or is refused by name."""

from __future__ import annotations

import json

import pytest
import yaml

from slipstream.config.load import load_config
from slipstream.errors import ConfigError
from tests.support.paths import shared_dir

EQUIVALENTS: dict[str, dict[str, object]] = {
    "tree-draft.yaml": {
        "model.source": "/models/main",
        "model.tokenizer": "/models/tokenizer",
        "server.host": "0.0.0.0",
        "server.port": 8000,
        "scheduler.max_num_requests": 128,
        "speculation.drafters": [{"kind": "draft_model", "source": "/models/draft"}],
        "speculation.max_draft_len": 6,
        "speculation.max_draft_nodes": 64,
        "observability.log_level": "info",
    },
    "block-drafter.yaml": {
        "model.source": "/data/models/target_model",
        "speculation.drafters": [{"kind": "draft_model", "source": "/data/models/draft_model"}],
        "speculation.max_draft_len": 5,
        "memory.utilization": 0.9,
        "server.port": 8000,
    },
    "builtin-mtp.yaml": {
        "model.source": "/inference/model/main_model.safetensors",
        "model.max_model_len": 65536,
        "engine.num_threads": 1,
        "speculation.max_draft_len": 2,
        "server.port": 8080,
    },
    "dynamic-length.json": {
        "model.source": "qwen3-7b",
        "speculation.max_draft_len": 32,
        "speculation.max_draft_nodes": 128,
        "scheduler.max_num_requests": 64,
        "memory.kv_bytes": "8GB",
    },
    "eagle-tree.yaml": {
        "model.source": "/models/llama-70b",
        "speculation.drafters": [
            {"kind": "draft_model", "source": "/models/llama-0.5b", "max_len": 2048}
        ],
        "speculation.max_draft_nodes": 128,
        "scheduler.max_num_requests": 64,
    },
}


@pytest.mark.parametrize("name", EQUIVALENTS)
def test_what_a_dialect_asks_for_can_be_said(name: str) -> None:
    load_config(overrides=EQUIVALENTS[name])


@pytest.mark.parametrize("name", EQUIVALENTS)
def test_a_dialect_itself_is_refused_key_by_key(name: str) -> None:
    path = shared_dir("data", "config_dialects", name)
    text = path.read_text(encoding="utf-8")
    content = json.loads(text) if name.endswith(".json") else yaml.safe_load(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file=path)
    foreign = [key for key in content if key not in ("model", "server")]
    assert all(f"{key} is not" in caught.value.message for key in foreign)


def test_every_dialect_is_covered() -> None:
    folder = shared_dir("data", "config_dialects")
    assert {path.name for path in folder.iterdir()} - {"README.md"} == set(EQUIVALENTS)
