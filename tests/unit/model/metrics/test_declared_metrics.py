from __future__ import annotations

import re

from iscp.model.metrics.declared_metrics import BYTES, METRICS, NODE_COUNTERS, SECONDS, MetricKind
from iscp.schedule.executor import Counters


def test_no_two_metrics_have_one_name_at_either_end() -> None:
    assert len({each.name for each in METRICS}) == len(METRICS)
    assert len({each.prometheus_name for each in METRICS}) == len(METRICS)


def test_names_are_in_the_style_of_the_semantic_conventions() -> None:
    names = [each.name for each in METRICS] + [one.name for each in METRICS for one in each.attributes]
    assert [name for name in names if not re.fullmatch(r"(iscp|error)(\.[a-z]+(_[a-z]+)*)+", name)] == []


def test_units_are_of_ucum_or_count_what_they_name() -> None:
    wrong = [each.name for each in METRICS if not re.fullmatch(rf"{SECONDS}|{BYTES}|\{{[a-z]+\}}", each.unit)]
    assert wrong == []


def test_what_only_grows_is_named_total_for_prometheus() -> None:
    counters = {each.prometheus_name for each in METRICS if each.kind is MetricKind.COUNTER}
    assert counters == {each.prometheus_name for each in METRICS if each.prometheus_name.endswith("_total")}


def test_an_attribute_means_one_thing() -> None:
    attributes = {one for each in METRICS for one in each.attributes}
    assert len({each.name for each in attributes}) == len(attributes)


def test_every_counter_of_status_is_a_metric() -> None:
    assert set(Counters.__slots__) <= set(NODE_COUNTERS)
    assert {each.metric for each in NODE_COUNTERS.values()} <= set(METRICS)
    places = [(each.metric.name, *each.attributes.values()) for each in NODE_COUNTERS.values()]
    assert len(set(places)) == len(places)
