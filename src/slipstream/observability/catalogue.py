"""Every metric, once. Dashboards, alerts, documentation and `metrics.py` all read this list.

Names are written without the prefix `slipstream_`; Prometheus adds `_total` to counters. Suffixes
and meanings of the `spec_decode_num_*` counters are those of vLLM, so that existing dashboards
need a new prefix only. Counters come first: ratios (acceptance, hit rate, time shares, tokens per
second over any window) are divisions of their rates, which can be summed over replicas.
"""

from __future__ import annotations

from slipstream.observability.metric_spec import Kind, MetricSpec

_LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_DURATION_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0)
_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)


def _api(
    name: str, kind: Kind, unit: str, meaning: str, *labels: str, buckets: tuple[float, ...] = ()
) -> MetricSpec:
    return MetricSpec(name, "api", kind, unit, meaning, labels, buckets)


def _engine(
    name: str, kind: Kind, unit: str, meaning: str, *labels: str, buckets: tuple[float, ...] = ()
) -> MetricSpec:
    return MetricSpec(name, "engine", kind, unit, meaning, labels, buckets)


HTTP_REQUESTS = _api(
    "http_requests", "counter", "requests", "Answered HTTP requests.", "endpoint", "status"
)
HTTP_SECONDS = _api(
    "http_request_seconds",
    "histogram",
    "seconds",
    "Time from a request's first byte to its answer's last one.",
    "endpoint",
    buckets=_DURATION_S,
)
HTTP_IN_FLIGHT = _api(
    "http_in_flight", "gauge", "requests", "Requests that are being worked on in the API process."
)
ERRORS = _api(
    "errors", "counter", "errors", "Error answers and error events by OpenAI error code.", "kind"
)
CLIENT_DISCONNECTS = _api(
    "client_disconnects", "counter", "requests", "Requests cancelled because the client left."
)
ENGINE_RESTARTS = _api(
    "engine_restarts", "counter", "restarts", "Times that the engine process was started again."
)
ENGINE_STATE = _api(
    "engine_state", "gauge", "", "1 for the engine's present state, 0 for the others.", "state"
)
BUILD_INFO = _api(
    "build_info",
    "gauge",
    "",
    "Always 1; the labels say what is served.",
    "version",
    "model",
    "fingerprint",
)

REQUESTS_RUNNING = _engine(
    "requests_running", "gauge", "requests", "Sequences in the running batch."
)
REQUESTS_WAITING = _engine(
    "requests_waiting", "gauge", "requests", "Requests in the waiting queue."
)
QUEUE_WAIT = _engine(
    "queue_wait_seconds",
    "histogram",
    "seconds",
    "Time from arrival to the first step.",
    buckets=_LATENCY_S,
)
PREFILL = _engine(
    "prefill_seconds",
    "histogram",
    "seconds",
    "Time from the first step of a prompt to its last row.",
    buckets=_LATENCY_S,
)
TIME_TO_FIRST_TOKEN = _engine(
    "time_to_first_token_seconds",
    "histogram",
    "seconds",
    "Time from arrival to the first output token, the queue included.",
    buckets=_LATENCY_S,
)
INTER_TOKEN = _engine(
    "inter_token_seconds",
    "histogram",
    "seconds",
    "Gap between output tokens; a step that emits k tokens counts k gaps of its time / k.",
    buckets=_LATENCY_S,
)
END_TO_END = _engine(
    "end_to_end_seconds",
    "histogram",
    "seconds",
    "Time from arrival to the last output token.",
    buckets=_DURATION_S,
)
REQUESTS_FINISHED = _engine(
    "requests_finished",
    "counter",
    "requests",
    "Finished sequences by reason: stop, length, cancelled, failed.",
    "reason",
)
PROMPT_TOKENS = _engine("prompt_tokens", "counter", "tokens", "Prompt tokens of taken requests.")
GENERATION_TOKENS = _engine("generation_tokens", "counter", "tokens", "Output tokens kept.")
TOKENS_PER_SECOND = _engine(
    "generation_tokens_per_second",
    "gauge",
    "tokens per second",
    "Output tokens per second over the last 10 seconds.",
)
STEP_SECONDS = _engine(
    "step_seconds", "histogram", "seconds", "Time of one engine step.", buckets=_LATENCY_S
)
STEP_ROWS = _engine(
    "step_rows",
    "histogram",
    "rows",
    "Rows of one target pass: prompt chunks, anchors and nodes.",
    buckets=_ROWS,
)
DRAFT_SECONDS = _engine(
    "draft_seconds",
    "counter",
    "seconds",
    "Time spent proposing; over the sum of step_seconds it is the draft share.",
)
VERIFY_SECONDS = _engine(
    "verify_seconds",
    "counter",
    "seconds",
    "Time of the target's passes and the sampling of their rows; the verify share.",
)
CPU_RUN_SECONDS = _engine(
    "cpu_run_seconds",
    "counter",
    "seconds",
    "Processor time of the engine's threads while it steps.",
)
CPU_WAIT_SECONDS = _engine(
    "cpu_wait_seconds",
    "counter",
    "seconds",
    "Time that these threads were ready to run but others had the processors; over the sum of "
    "both it is the share lost to other programs. 0 where the system does not tell.",
)
NUM_DRAFTS = _engine(
    "spec_decode_num_drafts", "counter", "drafts", "Non-empty drafts that were verified."
)
NUM_DRAFT_TOKENS = _engine(
    "spec_decode_num_draft_tokens", "counter", "tokens", "Draft tokens (tree nodes) verified."
)
NUM_DRAFT_TOKENS_PER_POS = _engine(
    "spec_decode_num_draft_tokens_per_pos",
    "counter",
    "drafts",
    "Drafts that reached this depth; position 0 is the first draft token.",
    "position",
)
NUM_ACCEPTED_TOKENS = _engine(
    "spec_decode_num_accepted_tokens",
    "counter",
    "tokens",
    "Draft tokens kept in the output, bonus tokens excluded.",
)
NUM_ACCEPTED_TOKENS_PER_POS = _engine(
    "spec_decode_num_accepted_tokens_per_pos",
    "counter",
    "tokens",
    "Draft tokens kept at this depth; position 0 is the first draft token.",
    "position",
)
NUM_EMITTED_TOKENS = _engine(
    "spec_decode_num_emitted_tokens",
    "counter",
    "tokens",
    "Tokens emitted by drafted steps, bonus tokens included.",
)
MEAN_ACCEPTANCE_LENGTH = _engine(
    "spec_decode_mean_acceptance_length",
    "gauge",
    "tokens",
    "1 + accepted / drafts since the start, bonus included; 1 before the first draft.",
)
DRAFTER_DRAFTS = _engine(
    "spec_decode_drafter_drafts",
    "counter",
    "drafts",
    "Verified drafts that hold a node of the drafter; 1 + its accepted tokens / these is its mean "
    "acceptance length.",
    "drafter",
)
DRAFTER_DRAFT_TOKENS = _engine(
    "spec_decode_drafter_draft_tokens",
    "counter",
    "tokens",
    "Verified draft tokens by the drafter that proposed them; merged ones count for each.",
    "drafter",
)
DRAFTER_ACCEPTED_TOKENS = _engine(
    "spec_decode_drafter_accepted_tokens",
    "counter",
    "tokens",
    "Kept draft tokens by the drafter that proposed them; merged ones count for each.",
    "drafter",
)
DRAFTER_ACTIVE = _engine(
    "drafter_active",
    "gauge",
    "",
    "1 while the drafter proposes, 0 while it is benched.",
    "drafter",
)
DRAFTER_FAULTS = _engine(
    "drafter_faults",
    "counter",
    "faults",
    "Faults of a drafter by kind: raised, timed_out, invalid.",
    "drafter",
    "kind",
)
KV_PAGES = _engine(
    "kv_pages",
    "gauge",
    "pages",
    "Pages of a KV cache by state: free, evictable, leased.",
    "cache",
    "state",
)
RECURRENT_STATES = _engine(
    "recurrent_states", "gauge", "states", "Free, evictable (idle snapshots) or leased.", "state"
)
RECURRENT_SNAPSHOTS = _engine(
    "recurrent_snapshots", "counter", "snapshots", "Taken, found by a prompt, evicted.", "event"
)
RECURRENT_ROWS = _engine(
    "recurrent_rows",
    "counter",
    "rows",
    "Rows in recurrent layers: known, drafted, and replayed because a draft token stayed.",
    "kind",
)
MEMORY_BYTES = _engine("memory_bytes", "gauge", "bytes", "Memory in use by owner.", "owner")
MEMORY_BUDGET = _engine("memory_budget_bytes", "gauge", "bytes", "The memory budget.")
PREFIX_QUERY_TOKENS = _engine(
    "prefix_query_tokens", "counter", "tokens", "Prompt tokens looked up in the prefix cache."
)
PREFIX_HIT_TOKENS = _engine(
    "prefix_hit_tokens", "counter", "tokens", "Prompt tokens found in the prefix cache."
)
PREEMPTIONS = _engine(
    "preemptions", "counter", "requests", "Running sequences sent back to the queue for memory."
)
KERNEL_PRODUCTS = _engine(
    "kernel_products",
    "counter",
    "products",
    "Matrix products by model (`target` or a drafter's name) and by what computed them.",
    "model",
    "kernel",
)
KERNEL_ATTENTION_CALLS = _engine(
    "kernel_attention_calls",
    "counter",
    "calls",
    "Attention of one layer in one pass, by model and by what computed it.",
    "model",
    "kernel",
)

CATALOGUE: tuple[MetricSpec, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, MetricSpec)
)


def metrics_table() -> str:
    """The Markdown table of all metrics, for the reference documentation."""
    rows = ["| Metric | Kind | Unit | Labels | Process | Meaning |", "|---|---|---|---|---|---|"]
    rows.extend(
        f"| `{spec.full_name}` | {spec.kind} | {spec.unit} | {', '.join(spec.labels)} "
        f"| {spec.owner} | {spec.meaning} |"
        for spec in CATALOGUE
    )
    return "\n".join(rows) + "\n"
