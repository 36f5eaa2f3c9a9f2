"""Running a plan: the engine's events of all its prompts, merged, bounded in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from slipstream import errors
from slipstream.engine.client import EngineClient
from slipstream.engine.messages import Failed, PromptDone, Submit, Tokens
from slipstream.server.plan import Plan

_BUFFERED_EVENTS = 256


@dataclass(frozen=True, slots=True)
class Progress:
    """One event of one prompt."""

    prompt_index: int
    event: PromptDone | Tokens


async def generate(engine: EngineClient, plan: Plan) -> AsyncGenerator[Progress, None]:
    """All events of `plan` until every choice is finished. Closing it cancels what still runs.

    Raises:
        RequestError: One of the prompts failed, so the whole request did.
        RequestTimeoutError: The deadline passed.
    """
    loop = asyncio.get_running_loop()
    deadline = None if plan.deadline_s is None else loop.time() + plan.deadline_s
    async with aclosing(_events(engine, plan.submits)) as events:
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    progress = await anext(events)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise errors.RequestTimeoutError(
                    f"the request was not finished within {plan.deadline_s:g} seconds"
                ) from None
            yield progress


def _events(engine: EngineClient, submits: Sequence[Submit]) -> AsyncGenerator[Progress, None]:
    return _single(engine, submits[0], 0) if len(submits) == 1 else _merged(engine, submits)


async def _single(
    engine: EngineClient, submit: Submit, prompt_index: int
) -> AsyncGenerator[Progress, None]:
    num_unfinished = submit.n
    async with aclosing(engine.submit(submit)) as events:
        async for event in events:
            if isinstance(event, Failed):
                raise _error_of(event)
            yield Progress(prompt_index, event)
            if isinstance(event, Tokens) and event.finish_reason is not None:
                num_unfinished -= 1
    if num_unfinished > 0:
        raise errors.EngineFailureError("the engine ended the request before its last token")


async def _merged(
    engine: EngineClient, submits: Sequence[Submit]
) -> AsyncGenerator[Progress, None]:
    queue: asyncio.Queue[Progress | Exception | None] = asyncio.Queue(_BUFFERED_EVENTS)

    async def pump(submit: Submit, prompt_index: int) -> None:
        try:
            async with aclosing(_single(engine, submit, prompt_index)) as events:
                async for progress in events:
                    await queue.put(progress)
        except Exception as error:  # noqa: BLE001 - carried to the reader, which raises it
            await queue.put(error)
        else:
            await queue.put(None)

    tasks = [asyncio.create_task(pump(submit, i)) for i, submit in enumerate(submits)]
    num_open = len(tasks)
    try:
        while num_open > 0:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _error_of(failed: Failed) -> errors.RequestError:
    """The exception that the engine named."""
    if failed.error == errors.RequestCancelledError.__name__:
        # The client is still there, so it was the server that gave the request up.
        return errors.EngineUnavailableError(
            f"the server gave the request up: {failed.message}", param=failed.param
        )
    kind = getattr(errors, failed.error, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.RequestError)):
        kind = errors.EngineFailureError
    error: errors.RequestError = kind(failed.message, param=failed.param, hint=failed.hint)
    return error
