"""The field table: every field is honoured or refused, none is dropped silently."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipstream.errors import InvalidRequestError, UnsupportedParameterError
from slipstream.protocol.field_check import fields_table, honoured_fields
from slipstream.protocol.fields import REQUEST_FIELDS, Endpoint, FieldSpec, fields_of
from slipstream.protocol.requests import ChatRequest, CompletionRequest

REFUSABLE = [spec for spec in REQUEST_FIELDS if spec.status != "honoured"]
OTHER_VALUES: list[Any] = [{"x": 1}, ["x"], "x", 7]


@pytest.mark.parametrize(
    ("endpoint", "model"), [("chat", ChatRequest), ("completions", CompletionRequest)]
)
def test_the_request_types_read_exactly_the_honoured_fields(
    endpoint: Endpoint, model: type[ChatRequest | CompletionRequest]
) -> None:
    honoured = {name for name, spec in fields_of(endpoint).items() if spec.status == "honoured"}
    assert honoured == set(model.model_fields)


def test_no_field_is_listed_twice_for_an_endpoint() -> None:
    pairs = [(spec.name, endpoint) for spec in REQUEST_FIELDS for endpoint in spec.endpoints]
    assert len(pairs) == len(set(pairs))


@pytest.mark.parametrize("spec", REFUSABLE, ids=lambda spec: spec.name)
def test_a_field_that_is_not_honoured_passes_with_its_neutral_values_only(spec: FieldSpec) -> None:
    for endpoint in spec.endpoints:
        for value in (None, *spec.neutral):
            assert honoured_fields({spec.name: value}, endpoint) == {}
        for value in OTHER_VALUES:
            with pytest.raises(UnsupportedParameterError) as caught:
                honoured_fields({spec.name: value}, endpoint)
            assert caught.value.param == spec.name
            assert spec.name in caught.value.message


def test_true_is_not_taken_for_the_neutral_value_one() -> None:
    with pytest.raises(UnsupportedParameterError, match="best_of"):
        honoured_fields({"best_of": True}, "completions")


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidRequestError, match='"temprature"; did you mean "temperature"') as e:
        honoured_fields({"temprature": 1}, "chat")
    assert e.value.param == "temprature"


def test_a_field_of_the_other_endpoint_is_unknown() -> None:
    with pytest.raises(InvalidRequestError, match="unknown field"):
        honoured_fields({"messages": []}, "completions")


def test_a_null_field_means_not_given() -> None:
    assert honoured_fields({"temperature": None, "top_p": 0.5}, "chat") == {"top_p": 0.5}


def test_the_table_names_every_field_and_its_neutral_values() -> None:
    table = fields_table()
    for spec in REQUEST_FIELDS:
        assert f"| `{spec.name}` |" in table
        for value in spec.neutral:
            assert f"`{json.dumps(value)}`" in table
