"""Every request field, once: honoured, or refused with which error.

The same table checks requests (`protocol.field_check`) and generates the documentation. A field
that is not here is unknown and refused. `null` always means "not given".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Endpoint = Literal["chat", "completions"]
Status = Literal["honoured", "refused", "neutral-only"]

_CHAT: tuple[Endpoint, ...] = ("chat",)
_COMPLETIONS: tuple[Endpoint, ...] = ("completions",)
_BOTH: tuple[Endpoint, ...] = ("chat", "completions")


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One request field.

    Attributes:
        name: As on the wire.
        endpoints: Where it exists.
        status: `honoured`; `refused`, unless it asks for nothing; `neutral-only`, accepted with
            the values under `neutral`, which change nothing here, and refused with others.
        meaning: What it does, or what it would do.
        neutral: Values besides null that ask for nothing.
        error: Why other values are refused; the error is UnsupportedParameterError, 400.
    """

    name: str
    endpoints: tuple[Endpoint, ...]
    status: Status
    meaning: str
    neutral: tuple[Any, ...] = ()  # Any: JSON values
    error: str = ""


def _honoured(endpoints: tuple[Endpoint, ...], meanings: Mapping[str, str]) -> list[FieldSpec]:
    return [FieldSpec(name, endpoints, "honoured", text) for name, text in meanings.items()]


def _refused(
    endpoints: tuple[Endpoint, ...], error: str, neutral: Mapping[str, tuple[Any, ...]]
) -> list[FieldSpec]:
    return [
        FieldSpec(name, endpoints, "refused", error, values, error)
        for name, values in neutral.items()
    ]


def _neutral_only(
    endpoints: tuple[Endpoint, ...], error: str, neutral: Mapping[str, tuple[Any, ...]]
) -> list[FieldSpec]:
    return [
        FieldSpec(name, endpoints, "neutral-only", error, values, error)
        for name, values in neutral.items()
    ]


_SAMPLING = {
    "temperature": "0 is greedy, up to 100; default 1",
    "top_p": "nucleus filter, above 0 to 1; default 1",
    "top_k": "keep the k most probable tokens; 0 or -1 is off (default)",
    "min_p": "drop tokens below this share of the best one's probability; 0 is off (default)",
    "n": "number of choices; choice i draws with a seed derived from `seed` and i",
    "seed": "64-bit seed of the noise; when not given one is drawn; the response reports it",
    "presence_penalty": "-2 to 2, over output tokens",
    "frequency_penalty": "-2 to 2, over output tokens",
    "repetition_penalty": "above 0 to 100, over prompt and output tokens; 1 is off (default)",
    "logit_bias": "token id -> -100 to 100, added to its logit",
    "bad_words": "up to 256 strings that the output never contains, nor completes where the "
    "prompt ends with their beginning",
    "allowed_token_ids": "no other token can be drawn",
    "max_tokens": "most output tokens; default: 16 (completions), the rest of the context (chat)",
    "min_tokens": "EOS and stop tokens cannot be drawn before this many output tokens",
    "ignore_eos": "EOS does not end the output",
    "stop": "string or up to 16 strings, of at most 1024 characters each, that end the output",
    "stop_token_ids": "token ids that end the output",
    "include_stop_str_in_output": "keep the stop string in the text",
    "logprobs_mode": '`"raw"`: the model\'s own distribution (default); `"processed"`: after '
    "processors, temperature and filters",
    "prompt_logprobs": "0 to 20: log-probabilities of the prompt tokens, with so many "
    "alternatives; not with `stream`",
}

_REQUEST = {
    "model": "name of the served model, as `/v1/models` lists it",
    "stream": "answer with server-sent events",
    "stream_options": "`include_usage`: a last chunk with the usage; only with `stream`",
    "user": "any string; not used and not logged",
    "safety_identifier": "any string; not used and not logged",
    "prompt_cache_key": "any string; a routing hint that one replica does not need",
    "priority": "-1000 to 1000, default 0: higher runs earlier; nobody starves",
    "timeout": "seconds until the request is given up with 408; the server's limit still holds",
    "cache_salt": "isolates the prefix cache and drafter memory of whoever sends the same salt",
    "speculation": "`enabled`, `max_draft_len`, `max_draft_nodes`, `drafters` (instance names); "
    "bounds above the server's are clamped",
    "return_token_ids": "add `prompt_token_ids` and each choice's `token_ids`",
    "return_tokens_as_token_ids": "in logprobs, write tokens as `token_id:ID`; needs logprobs",
    "add_special_tokens": "let the tokenizer add its special tokens to the prompt; default: true "
    "(completions, for text), false (chat: the template does)",
}

_CHAT_HONOURED = {
    "messages": "roles `system`, `developer` (as system), `user`, `assistant`; text content",
    "max_completion_tokens": "the newer name of `max_tokens`",
    "logprobs": "report log-probabilities of the output tokens",
    "top_logprobs": "0 to 20 alternatives per token; needs `logprobs`",
    "add_generation_prompt": "end the prompt where the assistant begins; default true",
    "chat_template_kwargs": "arguments for the chat template, such as `enable_thinking`; one that "
    "the model's template never reads is refused",
}

_COMPLETIONS_HONOURED = {
    "prompt": "string, list of strings, token ids, or list of token id lists",
    "echo": "the text begins with the prompt; with `logprobs`, so do the logprobs; "
    "`max_tokens` 0 is allowed",
    "logprobs": "0 to 20: log-probabilities of the output tokens, with so many alternatives",
}

_TOOLS = "tool calling is not supported by this server"
_STRUCTURED = 'structured output is not supported; only response_format {"type": "text"} is'
_MEDIA = "only text goes in and comes out of this server"
_STORE = "this server keeps no requests"
_BEAM = "beam search is not supported"
_TEMPLATE = "the chat template is the server's (model.chat_template)"
_TRUNCATE = "prompts are never cut; shorten the prompt"
_REASONING = (
    "pass template arguments such as enable_thinking, where the template reads them, in "
    "chat_template_kwargs"
)

REQUEST_FIELDS: tuple[FieldSpec, ...] = (
    *_honoured(_BOTH, _SAMPLING),
    *_honoured(_BOTH, _REQUEST),
    *_honoured(_CHAT, _CHAT_HONOURED),
    *_honoured(_COMPLETIONS, _COMPLETIONS_HONOURED),
    *_refused(
        _CHAT,
        _TOOLS,
        {
            "tools": ([],),
            "tool_choice": ("none", "auto"),
            "functions": ([],),
            "function_call": ("none", "auto"),
        },
    ),
    *_neutral_only(_CHAT, _TOOLS, {"parallel_tool_calls": (True,)}),
    *_neutral_only(_BOTH, _STRUCTURED, {"response_format": ({"type": "text"},)}),
    *_refused(
        _BOTH,
        _STRUCTURED,
        {
            "structured_outputs": ({},),
            "guided_json": (),
            "guided_regex": ("",),
            "guided_choice": ([],),
            "guided_grammar": ("",),
        },
    ),
    *_neutral_only(_CHAT, _MEDIA, {"modalities": (["text"],)}),
    *_refused(
        _CHAT,
        _MEDIA,
        {
            "audio": (),
            "media_io_kwargs": ({},),
            "mm_processor_kwargs": ({},),
        },
    ),
    *_refused(_CHAT, "web search is not supported by this server", {"web_search_options": ()}),
    *_refused(
        _CHAT,
        "predicted output is not supported; drafters find copied text themselves",
        {
            "prediction": (),
        },
    ),
    *_neutral_only(_BOTH, _STORE, {"store": (False,)}),
    *_neutral_only(_BOTH, _STORE, {"metadata": ({},)}),
    *_neutral_only(
        _BOTH,
        "this server has one service tier",
        {
            "service_tier": ("auto", "default"),
        },
    ),
    *_neutral_only(
        _CHAT,
        _REASONING,
        {
            "reasoning_effort": (),
            "verbosity": ("medium",),
            "include_reasoning": (True,),
            "thinking_token_budget": (-1,),
        },
    ),
    *_refused(_CHAT, _TEMPLATE, {"chat_template": (), "documents": ([],)}),
    *_neutral_only(
        _CHAT,
        "continuing an unfinished message is not supported",
        {
            "continue_final_message": (False,),
        },
    ),
    *_neutral_only(_CHAT, "echo exists on /v1/completions only", {"echo": (False,)}),
    *_neutral_only(_COMPLETIONS, "best_of is not supported; use n", {"best_of": (1,)}),
    *_refused(_COMPLETIONS, "text after the insertion point is not supported", {"suffix": ("",)}),
    *_refused(_COMPLETIONS, "prompts are text or token ids", {"prompt_embeds": ()}),
    *_neutral_only(
        _BOTH,
        _BEAM,
        {
            "use_beam_search": (False,),
            "length_penalty": (1.0,),
        },
    ),
    *_neutral_only(
        _BOTH,
        "special tokens yield no text; return_token_ids shows them",
        {
            "skip_special_tokens": (True,),
            "spaces_between_special_tokens": (True,),
        },
    ),
    *_refused(_BOTH, _TRUNCATE, {"truncate_prompt_tokens": (), "truncation_side": ()}),
    *_refused(_BOTH, "use the X-Request-Id header", {"request_id": ()}),
    *_refused(_BOTH, "this server's extensions are fields of their own", {"vllm_xargs": ({},)}),
    *_refused(
        _BOTH,
        "ask for top_logprobs (chat) or logprobs (completions)",
        {
            "logprob_token_ids": ([],),
        },
    ),
    *_refused(
        _BOTH,
        "moving a request between servers is not supported",
        {
            "kv_transfer_params": (),
        },
    ),
)


def fields_of(endpoint: Endpoint) -> dict[str, FieldSpec]:
    """Name -> field, for one endpoint."""
    return {spec.name: spec for spec in REQUEST_FIELDS if endpoint in spec.endpoints}
