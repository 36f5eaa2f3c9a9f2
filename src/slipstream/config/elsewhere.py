"""Names that readers bring along: settings of other engines, and what this version does not offer.

Nothing here is accepted; it makes the refusal of a key or value say what to do instead.
"""

from __future__ import annotations

SECRET_NAMES = frozenset({"api_key", "api_keys", "api_token", "password", "secret", "token"})

SECRETS_REASON = (
    "is a secret and is not read from a configuration file or a flag, where backups, logs and "
    "process lists show it; set the variable SLIPSTREAM_API_KEYS, or put the keys in a file of "
    "their own and name it in server.api_keys_file"
)

OUR_NAMES: dict[str, str] = {
    "accept_threshold": "speculation.verification",
    "base_model": "model.source",
    "cache_key_type": "memory.kv_dtype",
    "cache_value_type": "memory.kv_dtype",
    "candidate_max": "speculation.max_draft_len",
    "context_length": "model.max_model_len",
    "draft_cache_type": "memory.draft_kv_dtype",
    "draft_length": "speculation.max_draft_len",
    "enable_prefix_caching": "memory.prefix_cache",
    "gpu_memory_utilization": "memory.utilization",
    "max_batch_size": "scheduler.max_num_requests",
    "max_num_batched_tokens": "scheduler.max_step_tokens",
    "max_num_seqs": "scheduler.max_num_requests",
    "mem_fraction_static": "memory.utilization",
    "model_path": "model.source",
    "num_speculative_tokens": "speculation.max_draft_len",
    "threads": "engine.num_threads",
    "tree_size": "speculation.max_draft_nodes",
    "tree_width": "speculation.max_draft_nodes",
}
"""What other engines call a setting -> what it is called here."""

UNAVAILABLE_KEYS: dict[str, str] = {
    "adjust_interval_ms": "the controller decides at every step, so there is no interval to set",
    "metrics_port": "metrics are served at /metrics on server.port",
    "min_draft_len": "the controller may shrink a draft to nothing",
    "rate_limit": "server.max_concurrency and scheduler.max_queue_len bound the load",
    "tensor_parallel_size": "one engine process computes the whole model",
    "workers": "one API process serves one engine",
}
"""Key -> why this version has no such setting."""

UNAVAILABLE_VALUES: dict[str, dict[str, str]] = {
    "kind": {"eagle": "its draft net is not supported"}
    | {"typical": "it is lossy: it changes what the model says"}
    | dict.fromkeys(("acceptance", "goodput"), "use the cost controller"),
    "dtype": {"float16": "weights are held in bfloat16 or float32"},
    "kv_dtype": dict.fromkeys(("fp8", "q8", "q8_0"), "the 8-bit cache is int8"),
    "draft_kv_dtype": dict.fromkeys(("fp8", "q8", "q8_0"), "the 8-bit cache is int8"),
}
"""Field name -> value -> why this version refuses it."""
