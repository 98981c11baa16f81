"""Job files: what they may say, and that every fault is refused with its path."""

from __future__ import annotations

import io
import json
import os

import pytest

from iscp.cli.job.job_file import read_jobs
from iscp.cli.shell.untrusted_yaml import ALIASED_CHARS_MAX, NESTING_MAX, VALUES_MAX
from iscp.model.api.api_requests import JobName
from iscp.model.values.errors import InvalidRequest

FULL = """
table: /data/orders
name: copy
account: acme
consumer: replica
target: /data/copy
key: [id, region]
columns: a, b
where: a > 1
trigger: default
priority: 5
"""
SPEC = """
table: sales.orders
name: copy
spec:
  trigger: {job_type: default}
  iteration: {priority: 5, consumer: {kind: replica, target: copies/orders, key: [id]}}
"""


def read(text: str) -> list[tuple[JobName, dict[str, object]]]:
    return [(one.job, json.loads(one.spec_json)) for one in read_jobs(io.StringIO(text), "job.yaml")]


def test_the_fields_are_those_of_the_options() -> None:
    consumer = {
        "kind": "replica",
        "target": "/data/copy",
        "key": ["id", "region"],
        "columns": ["a", "b"],
        "where": "a > 1",
    }
    assert read(FULL) == [
        (
            JobName("/data/orders", "copy", "acme"),
            {"trigger": {"job_type": "default"}, "iteration": {"consumer": consumer, "priority": 5}},
        )
    ]


def test_a_consumer_that_is_not_ours_may_do_without_a_target() -> None:
    ((_, spec),) = read("{table: /data/orders, name: bus, consumer: queue, options: {topic: orders}}")
    assert spec == {"iteration": {"consumer": {"kind": "queue", "target": "", "options": {"topic": "orders"}}}}


def test_a_whole_spec_may_be_given_and_its_target_is_made_absolute() -> None:
    ((job, spec),) = read(SPEC)
    assert job == JobName("sales.orders", "copy", "default")
    consumer = {"kind": "replica", "target": os.path.abspath("copies/orders"), "key": ["id"]}
    assert spec == {"trigger": {"job_type": "default"}, "iteration": {"priority": 5, "consumer": consumer}}


def test_how_a_job_runs_may_be_given_with_durations_as_people_write_them() -> None:
    run = "trigger: periodic, every: 10m, share: true, target_lag: 90, on_replace: follow"
    ((_, spec),) = read(f"{{table: /t, name: a, target: /x, {run}}}")
    assert spec == {
        "trigger": {"job_type": "periodic", "schedule": {"interval": 600.0, "share": True}},
        "target_lag": 90,
        "iteration": {"on_replace": "follow", "consumer": {"kind": "replica", "target": "/x"}},
    }


def test_documents_and_lists_of_jobs_may_be_mixed() -> None:
    one = "{table: /t, name: %s, target: /x}"
    text = f"{one % 'a'}\n---\n- {one % 'b'}\n- {one % 'c'}\n---\n"
    assert [job.name for job, _ in read(text)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "job.yaml"),
        ("a: [", "job.yaml"),
        ("!!python/object:os.system {}", "job.yaml"),
        ("name: a\nname: b", "job.yaml"),
        ("? [a]\n: b", "job.yaml"),
        ("just words", "job.yaml[0]"),
        ("[1]", "job.yaml[0]"),
        ("{name: a, target: /x}", "job.yaml[0].table"),
        ("{table: /t, target: /x}", "job.yaml[0].name"),
        ("{table: /t, name: a}", "job.yaml[0].target"),
        ("{table: /t, name: 5, target: /x}", "job.yaml[0].name"),
        ("{table: /t, name: a, target: /x, keys: [a]}", "job.yaml[0].keys"),
        ("{table: /t, name: a, target: /x, key: {a: b}}", "job.yaml[0].key"),
        ("{table: /t, name: a, target: /x, key: [1]}", "job.yaml[0].key"),
        ("{table: /t, name: a, target: /x, key: [a, a]}", "job.yaml[0].key"),
        ("{table: /t, name: a, target: /x, trigger: hourly}", "job.yaml[0].trigger"),
        ("{table: /t, name: a, target: /x, priority: high}", "job.yaml[0].priority"),
        ("{table: /t, name: a, target: /x, priority: 5000}", "job.yaml[0].priority"),
        ("{table: /t, name: a, target: /x, trigger: periodic}", "job.yaml[0].every"),
        ("{table: /t, name: a, target: /x, trigger: periodic, every: often}", "job.yaml[0].every"),
        ("{table: /t, name: a, target: /x, trigger: periodic, every: 0s}", "job.yaml[0].every"),
        ("{table: /t, name: a, target: /x, every: 10m}", "job.yaml[0].every"),
        ("{table: /t, name: a, target: /x, target_lag: 2013-01-01}", "job.yaml[0]"),
        ("{table: /t, name: a, target: /x, on_replace: 5}", "job.yaml[0].on_replace"),
        ("{table: /t, name: a, spec: 5}", "job.yaml[0].spec"),
        ("{table: /t, name: a, spec: {2013-01-01: x}}", "job.yaml[0].spec"),
        ("{table: /t, name: a, spec: {}, target: /x}", "job.yaml[0].target"),
        ("{table: /t, name: a, spec: {iteration: {consumer: {}}}}", "job.yaml[0].spec.iteration.consumer.kind"),
        ("{table: /t, name: a, target: /x}\n---\n{table: /t, name: b}", "job.yaml[1].target"),
    ],
)
def test_a_fault_is_refused_with_its_path(text: str, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(text)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, f"nested deeper than {NESTING_MAX}"),
        ("- " * 100_000, f"nested deeper than {NESTING_MAX}"),
        (f"priority: {'9' * 5_000}", "is not YAML"),
        ("where: 2020-99-99", "is not YAML"),
        ("&a {table: /t, name: n, target: /x, options: *a}", "cannot be written as JSON"),
    ],
    ids=["lists in lists", "lists in a line", "too many digits", "no such day", "holds itself"],
)
def test_what_would_end_the_program_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        read(text)
    assert refused.value.remedy


def test_aliases_of_aliases_are_counted_before_they_are_written_out() -> None:
    levels = "".join(f", &a{level} [*a{level - 1}, *a{level - 1}]" for level in range(1, 24))
    for place in ("target: ", "options: {a: ", "key: "):
        with pytest.raises(
            InvalidRequest, match=f"aliases that repeat more than {ALIASED_CHARS_MAX} values"
        ) as refused:
            read(f"{{table: /t, name: n, target: /x, {place}[&a0 [x]{levels}]{'}' * place.count('{')}}}")
        assert refused.value.field == "job.yaml"


def test_values_are_counted_before_they_take_gigabytes() -> None:
    with pytest.raises(InvalidRequest, match=f"has more than {VALUES_MAX} values") as refused:
        read("-\n" * (10 * VALUES_MAX))
    assert refused.value.field == "job.yaml"


def test_jobs_may_share_what_they_have_in_common() -> None:
    shared = "\n".join(f"- {{<<: *job, name: n{number}}}" for number in range(100))
    jobs = read(f"- &job {{table: /t, name: n, target: /x, options: {{a: b}}}}\n{shared}")
    assert [job.name for job, _ in jobs] == ["n", *(f"n{number}" for number in range(100))]


FAULTY = """
- {table: /t, targt: /x, key: [a, a], every: often, priority: high}
- {table: /t, name: b, target: /x}
- just words
- {table: /t, name: c, spec: {trigger: {job_typ: default}, iteration: {consumer: {kind: replica, target: 5}}}}
- {table: /t, name: d, consumer: view, trigger: hourly, options: {sql: SELECT 1}}
"""


def test_every_fault_of_a_file_is_said_at_once_with_its_place() -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(FAULTY)
    faults = (refused.value, *refused.value.others)
    assert [each.field.removeprefix("job.yaml") for each in faults] == [
        "[0].targt",
        "[0].name",
        "[0].target",
        "[0].every",
        "[0].key",
        "[0].priority",
        "[2]",
        "[3].spec.trigger.job_typ",
        "[3].spec.iteration.consumer.target",
        "[4].options.tables",
        "[4].trigger",
    ]
    assert faults[0].remedy.startswith("Did you mean target? Known are account")
    assert faults[7].remedy.startswith("Did you mean job_type? Known are")
    assert all(each.remedy for each in faults)
