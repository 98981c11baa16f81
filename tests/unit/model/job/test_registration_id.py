"""Ids say when a registration began, of which spec its target is, and who keeps that; their order is that of time.

Patterns over tables and jobs.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import (
    RegistrationId,
    goes_on_from,
    id_of_successor,
    is_pattern,
    marked_job_id,
    matcher,
    parse_job_id,
    spec_mark,
    superseded,
)
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.spec.spec_parsing import parse_spec
from iscp.model.values.ids import JobKey, next_job_id, ranged_job_id

URI = "/lake/orders"
SPEC = ConsumerSpec("view", "/lake/copy", ("id", "größe"), ("v",), "v > 1.5", {"b": [1, 2.5], "a": {"y": None, "x": 1}})
MARK = "0123456789abcdef"
OTHER = "fedcba9876543210"
TIMES = st.integers(0, 16**12 - 1).map(lambda ms: f"{ms:012x}")
TAILS = st.sampled_from(["", f"-{MARK}", f"-{OTHER}", f"-{MARK}-full", f"-{OTHER}-run", f"-{MARK}-run-full", ".0001"])


def test_a_mark_is_the_same_in_each_release_and_process() -> None:
    """Targets have it: a mark that changes would have each of them rebuilt when its keeper changes."""
    assert spec_mark(URI, SPEC) == "f7c38ebc71a7040d"
    assert spec_mark(URI, ConsumerSpec("replica", "/lake/copy")) == "b0a771570d29a23c"
    code = (
        "from iscp.model.job.registration_id import spec_mark; from iscp.model.spec.spec import ConsumerSpec;"
        "print(spec_mark('/lake/orders', ConsumerSpec('replica', '/lake/copy')))"
    )
    for seed in ("1", "2"):
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONHASHSEED": seed})
        assert out.stdout.strip() == "b0a771570d29a23c", out.stderr


def test_a_mark_is_of_the_table_and_of_each_field_of_the_consumer_and_of_nothing_else() -> None:
    others = [
        ConsumerSpec(*values)
        for values in (
            ("changefeed", SPEC.target, SPEC.key, SPEC.columns, SPEC.where, SPEC.options),
            (SPEC.kind, "/lake/other", SPEC.key, SPEC.columns, SPEC.where, SPEC.options),
            (SPEC.kind, SPEC.target, ("größe", "id"), SPEC.columns, SPEC.where, SPEC.options),
            (SPEC.kind, SPEC.target, SPEC.key, (), SPEC.where, SPEC.options),
            (SPEC.kind, SPEC.target, SPEC.key, SPEC.columns, "v > 1.6", SPEC.options),
            (SPEC.kind, SPEC.target, SPEC.key, SPEC.columns, SPEC.where, {**SPEC.options, "b": [2.5, 1]}),
        )
    ]
    marks = [spec_mark(URI, SPEC), spec_mark("/lake/returns", SPEC), *(spec_mark(URI, each) for each in others)]
    assert len(set(marks)) == len(marks)


def test_a_mark_does_not_change_when_the_spec_goes_through_the_job_log_or_its_options_have_another_order() -> None:
    stored = parse_spec(
        '{"iteration":{"consumer":{"options":{"a":{"x":1,"y":null},"b":[1,2.5]},"where":"v > 1.5","columns":["v"],'
        '"key":["id","größe"],"target":"/lake/copy","kind":"view"}},"target_lag":60}'
    )
    assert spec_mark(URI, stored.consumer) == spec_mark(URI, parse_spec(stored.to_json()).consumer)
    assert spec_mark(URI, stored.consumer) == spec_mark(URI, SPEC)


@pytest.mark.parametrize(("run", "full"), [*product((False, True), repeat=2)])
def test_the_parts_of_an_id_are_read_back_from_it_and_from_those_of_its_ranges(run: bool, full: bool) -> None:
    job_id = marked_job_id("0018c2a7b3f0", MARK, run=run, full=full)
    for each in (job_id, ranged_job_id(job_id, 3)):
        assert parse_job_id(each) == RegistrationId("0018c2a7b3f0", MARK, run, full)


def test_older_ids_have_no_mark_and_other_texts_nothing() -> None:
    assert parse_job_id("0018c2a7b3f0") == RegistrationId("0018c2a7b3f0")
    assert parse_job_id("0018c2a7b3f0.0002") == RegistrationId("0018c2a7b3f0")
    good = marked_job_id("0018c2a7b3f0", MARK, run=True)
    wrong = ["", "x", "0018C2A7B3F0", good + "\n", good[:-1], good + "-run", " " + good, good.replace("-run", "run")]
    wrong += [marked_job_id("10018c2a7b3f0", MARK), marked_job_id("0018c2a7b3f0", MARK + "0"), good.upper()]
    assert [parse_job_id(each) for each in wrong] == [RegistrationId()] * len(wrong)


@given(TIMES, TIMES, TAILS, TAILS)
def test_the_later_of_two_ids_is_the_greater_one_of_any_forms(one: str, other: str, tail: str, last: str) -> None:
    if one != other:
        assert (one + tail < other + last) == (int(one, 16) < int(other, 16))


@given(TIMES.filter(lambda text: text != "f" * 12), TAILS, st.integers(0, 0xFFFF), TAILS)
def test_the_next_id_is_later_than_any_of_the_last_ones_time(last: str, tail: str, number: int, next_tail: str) -> None:
    known = last + tail
    assert next_job_id(0.0, known) + next_tail > known
    if "." not in known:
        assert known < ranged_job_id(known, number) < next_job_id(0.0, known) + next_tail


def test_the_successor_of_a_split_says_what_its_registration_said() -> None:
    registration = marked_job_id("0018c2a7b3f0", MARK, full=True)
    assert id_of_successor("0018c2a7b3f1", registration) == marked_job_id("0018c2a7b3f1", MARK, full=True)
    assert id_of_successor("0018c2a7b3f1", "0018c2a7b3f0") == "0018c2a7b3f1"


def test_a_target_is_gone_on_with_only_from_a_run_to_a_cluster_or_back_under_one_mark() -> None:
    cluster, run = marked_job_id("000000000001", MARK), marked_job_id("000000000002", MARK, run=True)
    later, later_run = marked_job_id("000000000003", MARK), marked_job_id("000000000004", MARK, run=True)
    assert goes_on_from(run, cluster)
    assert goes_on_from(later, run)
    assert goes_on_from(ranged_job_id(later, 1), run)
    assert not goes_on_from(later, cluster), "a cluster's later registration builds"
    assert not goes_on_from(later_run, run), "a run goes on under the id that is there"
    assert not goes_on_from(run, later), "an earlier one never claims"
    assert not goes_on_from(marked_job_id("000000000003", OTHER), run)
    assert not goes_on_from(marked_job_id("000000000003", MARK, full=True), run), "a resync builds"
    assert not goes_on_from("000000000003", run)
    assert not goes_on_from(later_run, "000000000001"), "nobody knows the spec of an older registration"
    assert not goes_on_from(later, "")


def test_two_keepers_of_one_millisecond_are_ordered_alike_for_both() -> None:
    cluster, run = marked_job_id("000000000001", MARK), marked_job_id("000000000001", MARK, run=True)
    assert goes_on_from(run, cluster)
    assert not goes_on_from(cluster, run)


def test_a_job_that_lost_its_target_says_to_whom_and_how_it_goes_on_after_a_run() -> None:
    cluster, run = marked_job_id("000000000001", MARK), marked_job_id("000000000001", MARK, run=True)
    assert str(superseded("the target", cluster)).endswith(f"the target belongs to the later registration {cluster}")
    of_run = superseded("the target", run)
    assert (run in of_run.message, "a run" in of_run.message, "registered again" in of_run.remedy) == (True,) * 3


ROW = JobRow(JobKey("default", "t-1", "copy"), "id", "{}", "sales.orders", "/lake/sales/orders")


@pytest.mark.parametrize(
    ("table", "name", "matches"),
    [
        ("", "", True),
        ("*", "*", True),
        ("sales.*", "", True),
        ("sales.order?", "cop[xy]", True),
        ("*orders", "*", True),
        ("/lake/*", "copy", True),
        ("/lake/sales/orders", "", True),
        ("sales.", "", False),
        ("order*", "", False),
        ("Sales.*", "", False),
        ("sales.*", "cop", False),
        ("sales.*", "Copy", False),
        ("t-*", "", False),
    ],
)
def test_a_pattern_is_of_the_whole_name_of_the_table_or_of_its_place(table: str, name: str, matches: bool) -> None:
    assert matcher(table, name)(ROW) is matches


def test_what_is_a_pattern() -> None:
    assert [text for text in ("sales.*", "a?", "[ab]", "/lake/orders", "sales.orders", "") if is_pattern(text)] == [
        "sales.*",
        "a?",
        "[ab]",
    ]
