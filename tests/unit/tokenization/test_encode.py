"""Encoding text, beside everything else that a service does."""

from __future__ import annotations

import threading
import time

from slipstream.tokenization.gguf_tokenizer import tokenizer_from_gguf
from slipstream.tokenization.tokenizer import Tokenizer
from tests.unit.tokenization.vocabularies import byte_level_metadata


def test_others_go_on_while_a_long_text_is_encoded() -> None:
    tokenizer = Tokenizer(tokenizer_from_gguf(byte_level_metadata()))
    text = "hell" * 400_000
    took = 0.0

    def encode() -> None:
        nonlocal took
        began = time.perf_counter()
        assert len(tokenizer.encode(text)) >= 400_000
        took = time.perf_counter() - began

    thread = threading.Thread(target=encode)
    thread.start()
    longest, last = 0.0, time.perf_counter()
    while thread.is_alive():
        time.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    thread.join()
    assert longest < took / 2
