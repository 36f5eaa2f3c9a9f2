"""The catalogue, the registries and the merged exposition."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slipstream.clock import ManualClock
from slipstream.observability.api_metrics import ApiMetrics
from slipstream.observability.catalogue import CATALOGUE, metrics_table
from slipstream.observability.engine_metrics import DraftOutcome, EngineMetrics, StepTimes
from slipstream.observability.metric_spec import PREFIX
from slipstream.observability.metrics import merge_expositions


def samples(exposition: bytes) -> dict[str, float]:
    """`name{label="value"}` -> value."""
    found = {}
    for family in text_string_to_metric_families(exposition.decode()):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def test_catalogued_names_are_unique_and_explained() -> None:
    assert len({spec.name for spec in CATALOGUE}) == len(CATALOGUE)
    for spec in CATALOGUE:
        assert spec.meaning.endswith(".")
        assert (spec.kind == "histogram") == bool(spec.buckets)
        assert f"`{spec.full_name}`" in metrics_table()


def test_each_process_exposes_its_own_part_of_the_catalogue() -> None:
    for owner, exposition in (
        ("api", ApiMetrics().exposition()),
        ("engine", EngineMetrics(ManualClock()).exposition()),
    ):
        families = {f.name for f in text_string_to_metric_families(exposition.decode())}
        assert families == {PREFIX + spec.name for spec in CATALOGUE if spec.owner == owner}


def test_speculation_counters_keep_the_names_that_dashboards_know() -> None:
    metrics = EngineMetrics(ManualClock())
    outcome = DraftOutcome(
        num_nodes=5,
        depth=3,
        num_accepted=2,
        num_emitted=3,
        proposed={"suffix": 5},
        accepted={"suffix": 2},
    )
    metrics.observe_draft(outcome)
    found = samples(metrics.exposition())
    prefix = "slipstream_spec_decode_"
    assert found[prefix + "num_drafts_total"] == 1
    assert found[prefix + "num_draft_tokens_total"] == 5
    assert found[prefix + "num_accepted_tokens_total"] == 2
    assert found[prefix + "num_emitted_tokens_total"] == 3
    for position, expected in enumerate((1.0, 1.0, None)):
        name = f'{prefix}num_accepted_tokens_per_pos_total{{position="{position}"}}'
        assert found.get(name) == expected
    assert found[prefix + 'num_draft_tokens_per_pos_total{position="2"}'] == 1
    assert found[prefix + 'drafter_drafts_total{drafter="suffix"}'] == 1
    assert found[prefix + 'drafter_accepted_tokens_total{drafter="suffix"}'] == 2
    assert found[prefix + "mean_acceptance_length"] == 3.0


def test_mean_acceptance_length_is_one_before_the_first_draft() -> None:
    found = samples(EngineMetrics(ManualClock()).exposition())
    assert found["slipstream_spec_decode_mean_acceptance_length"] == 1.0


def test_tokens_per_second_looks_back_ten_seconds() -> None:
    clock = ManualClock()
    metrics = EngineMetrics(clock)
    clock.advance(20.0)
    metrics.observe_emitted(50, gap_s=None)
    name = "slipstream_generation_tokens_per_second"
    assert samples(metrics.exposition())[name] == 5.0
    clock.advance(11.0)
    assert samples(metrics.exposition())[name] == 0.0


def test_a_block_of_tokens_counts_as_so_many_gaps() -> None:
    metrics = EngineMetrics(ManualClock())
    metrics.observe_emitted(1, gap_s=None)
    metrics.observe_emitted(4, gap_s=0.2)
    found = samples(metrics.exposition())
    assert found["slipstream_inter_token_seconds_count"] == 4
    assert found["slipstream_inter_token_seconds_sum"] == pytest.approx(0.2)
    assert found["slipstream_generation_tokens_total"] == 5


def test_draft_and_verify_shares_can_be_derived_from_step_time() -> None:
    metrics = EngineMetrics(ManualClock())
    metrics.observe_step(StepTimes(total_s=0.10, draft_s=0.01, verify_s=0.08, num_rows=9))
    found = samples(metrics.exposition())
    total_s = found["slipstream_step_seconds_sum"]
    assert found["slipstream_draft_seconds_total"] / total_s == pytest.approx(0.1)
    assert found["slipstream_verify_seconds_total"] / total_s == pytest.approx(0.8)


def test_a_benched_drafter_shows_as_inactive() -> None:
    metrics = EngineMetrics(ManualClock())
    metrics.set_drafters(["ngram", "suffix"])
    metrics.set_drafter_active("suffix", is_active=False)
    metrics.count_drafter_fault("suffix", "raised")
    found = samples(metrics.exposition())
    assert found['slipstream_drafter_active{drafter="ngram"}'] == 1
    assert found['slipstream_drafter_active{drafter="suffix"}'] == 0
    assert found['slipstream_drafter_faults_total{drafter="suffix",kind="raised"}'] == 1
    assert found['slipstream_spec_decode_drafter_draft_tokens_total{drafter="ngram"}'] == 0


def test_every_typed_method_reaches_its_metric() -> None:
    metrics = EngineMetrics(ManualClock())
    metrics.observe_admitted(7, 0.5)
    metrics.observe_prefix(7, 4)
    metrics.observe_prefill(0.1)
    metrics.observe_first_token(0.6)
    metrics.observe_finished("stop", 1.0)
    metrics.observe_finished("cancelled", 1.0)
    metrics.count_preemption()
    metrics.set_queue(num_running=2, num_waiting=3)
    metrics.set_kv_pages("target", {"free": 5, "leased": 6})
    metrics.set_memory({"weights": 10}, budget_bytes=100)
    found = samples(metrics.exposition())
    expected = {
        "slipstream_prompt_tokens_total": 7,
        "slipstream_queue_wait_seconds_sum": 0.5,
        "slipstream_prefix_query_tokens_total": 7,
        "slipstream_prefix_hit_tokens_total": 4,
        "slipstream_prefill_seconds_count": 1,
        "slipstream_time_to_first_token_seconds_count": 1,
        "slipstream_end_to_end_seconds_count": 1,
        'slipstream_requests_finished_total{reason="cancelled"}': 1,
        "slipstream_preemptions_total": 1,
        "slipstream_requests_running": 2,
        "slipstream_requests_waiting": 3,
        'slipstream_kv_pages{cache="target",state="leased"}': 6,
        'slipstream_memory_bytes{owner="weights"}': 10,
        "slipstream_memory_budget_bytes": 100,
    }
    assert {name: found[name] for name in expected} == expected


def test_totals_by_kernel_are_read_when_they_are_scraped() -> None:
    metrics = EngineMetrics(ManualClock())
    products = {"native-amx:Q4_1": 0, "torch-mm:bfloat16": 2}
    metrics.read_kernels("target", lambda: products, dict)
    metrics.read_kernels("small", lambda: {"native-amx:BF16": 7}, lambda: {"torch:bfloat16": 1})
    metrics.exposition()
    products["native-amx:Q4_1"] = 5
    found = samples(metrics.exposition())
    name = "slipstream_kernel_products_total"
    assert found[f'{name}{{kernel="native-amx:Q4_1",model="target"}}'] == 5
    assert found[f'{name}{{kernel="torch-mm:bfloat16",model="target"}}'] == 2
    assert found[f'{name}{{kernel="native-amx:BF16",model="small"}}'] == 7
    calls = "slipstream_kernel_attention_calls_total"
    assert found[f'{calls}{{kernel="torch:bfloat16",model="small"}}'] == 1


def test_two_services_in_one_process_do_not_share_counters() -> None:
    first, second = ApiMetrics(), ApiMetrics()
    first.failed("queue_full")
    assert 'slipstream_errors_total{kind="queue_full"}' in samples(first.exposition())
    assert 'slipstream_errors_total{kind="queue_full"}' not in samples(second.exposition())


def test_merged_expositions_are_one_valid_exposition() -> None:
    api, engine = ApiMetrics(), EngineMetrics(ManualClock())
    api.answered("/health", 200, 0.01)
    merged = merge_expositions([api.exposition().decode(), engine.exposition().decode()])
    found = samples(merged.encode())
    assert found['slipstream_http_requests_total{endpoint="/health",status="200"}'] == 1
    assert found["slipstream_requests_running"] == 0
    assert "_created" not in merged


def test_a_family_that_two_texts_share_appears_once() -> None:
    text = "# HELP x A number.\n# TYPE x gauge\nx 1\n# EOF\n"
    assert merge_expositions([text, text]) == "# HELP x A number.\n# TYPE x gauge\nx 1\n"
