"""A running target as a doctor asks it: for its greedy answers, and its states along them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slipstream.doctor.forced import ForcedText
from slipstream.engine.llm import LLM
from slipstream.engine.loading import LoadedModel
from slipstream.engine.messages import SpeculationOptions
from slipstream.errors import SlipstreamError
from slipstream.execution.runner import Runner
from slipstream.models.drafts.ends import ModelEnds
from slipstream.models.hparams import Hparams
from slipstream.sampling.params import SamplingParams
from slipstream.training.answers import Answer
from slipstream.training.target import TargetReader

Message = Mapping[str, Any]  # Any: message values are the chat template's business


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt with the target's plain, greedy answer."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


class ExaminedTarget:
    """See the module.

    Args:
        llm: Its engine, with all drafters that can be loaded.
        path: Where its weights are.
    Attributes:
        model: In memory once, the engine's own.
    """

    def __init__(self, llm: LLM, path: Path) -> None:
        runner = llm.engine.target
        assert isinstance(runner, Runner), "an LLM runs its model by a Runner"
        self.llm = llm
        self.model = runner.model
        info = llm.engine.info
        self._loaded = LoadedModel(
            name=info.model,
            path=path,
            model=runner.model,
            tokenizer=llm.tokenizer,
            max_model_len=info.max_model_len,
            dtype=runner.model.dtype,
        )

    @property
    def hparams(self) -> Hparams:
        """Of the model."""
        return self.model.hparams

    @property
    def ends(self) -> ModelEnds:
        """Embeddings and head."""
        return ModelEnds(self.model)

    def answer(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Case]:
        """Plain greedy answers; prompts that leave no room for one are left out.

        Raises:
            SlipstreamError: The engine cannot answer.
        """
        most = self._loaded.max_model_len - max_tokens
        fitting = [tuple(prompt) for prompt in prompts if 1 <= len(prompt) <= most]
        plain = SpeculationOptions(enabled=False)
        done = self.llm.generate(fitting, _greedy(max_tokens), speculation=plain)
        return [
            Case(prompt, tuple(generation.token_ids))
            for prompt, generation in zip(fitting, done, strict=True)
        ]

    def served_length(self, cases: Sequence[Case], max_tokens: int, drafter: str) -> float | None:
        """Mean acceptance length of one drafter alone in the engine; None if it drafted nothing.

        Raises:
            SlipstreamError: The engine cannot answer, or gives other answers than plainly.
        """
        alone = SpeculationOptions(drafters=(drafter,))
        prompts = [case.prompt_ids for case in cases]
        done = self.llm.generate(prompts, _greedy(max_tokens), speculation=alone)
        stats = [generation.choices[0].speculation for generation in done]
        for case, generation in zip(cases, done, strict=True):
            if tuple(generation.token_ids) != case.answer_ids:
                raise SlipstreamError(
                    f"with drafter {drafter} the engine answers a prompt differently than without",
                    hint="report this with `slipstream audit lossless --json`",
                )
        num_drafts = sum(item.num_drafts for item in stats)
        if not num_drafts:
            return None
        return 1.0 + sum(item.num_accepted_tokens for item in stats) / num_drafts

    def read(self, cases: Sequence[Case], layer_ids: Sequence[int]) -> list[ForcedText]:
        """The texts with the output of some layers at every place."""
        answers = [
            Answer(
                prompt_id=str(number),
                temperature=0.0,
                prompt_ids=case.prompt_ids,
                response_ids=case.answer_ids,
                finish="length",
            )
            for number, case in enumerate(cases)
        ]
        longest = max(len(case.prompt_ids) + len(case.answer_ids) for case in cases)
        reader = TargetReader(self._loaded, layer_ids, num_top=1, max_len=longest)
        texts = []
        for case, features in zip(cases, reader.read(answers), strict=True):
            parts = features.taps.chunk(len(layer_ids), -1)
            tokens = torch.tensor(case.prompt_ids + case.answer_ids)
            taps = dict(zip(layer_ids, parts, strict=True))
            texts.append(ForcedText(tokens, len(case.prompt_ids), taps))
        return texts


def _greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)
