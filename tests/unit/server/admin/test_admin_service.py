"""Registrations, resyncs and checks: tried before anything is written, in the log when answered.

What is answered of jobs: their lists, history, lag, refreshes and comparisons.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from iscp.cluster.owner.job_log_writer import ASK_PAUSE_S
from iscp.cluster.requests.job_maker import JOB_NAME_LENGTH_MAX
from iscp.model.api.api_requests import (
    Action,
    ChangeVerb,
    JobChange,
    JobFilter,
    JobName,
    RegisterRequest,
    ResyncRequest,
    UpdateRequest,
)
from iscp.model.job.iteration import NO_MAINTENANCE, HistoryEntry, JobMaintenance, MaintenanceFigures
from iscp.model.job.job_row import JobRow, JobState, JobStatus, Reason
from iscp.model.job.start_rule import Comparison, VerifyReport
from iscp.model.protocol.messages import VersionAge
from iscp.model.spec.spec_parsing import parse_spec
from iscp.model.values.errors import (
    ErrorCode,
    InvalidRequest,
    JobFailed,
    JobNotFound,
    NotOwner,
    OutcomeUnknown,
    StorageError,
    TableNotFound,
    TimedOut,
    Unavailable,
)
from iscp.model.values.ids import Moment, ShardId
from iscp.schedule.schedule_events import VerifyAnswered, VerifyRequested
from tests.fakes.desk import OTHER, TABLE, Desk, X, asked, fail, request, spec
from tests.fakes.node_calls import PROGRESS
from tests.fakes.pipeline import FakeKind
from tests.fakes.waiting import until


def test_a_registration_is_in_the_log_when_it_is_answered(desk: Desk) -> None:
    (result,) = desk.admin.register([request()])
    row = desk.row()
    assert (result.created, result.job_id, result.table_id) == (True, row.job_id, "t-1")
    assert (row.table_name, row.table_uri, row.create_at_s) == (TABLE.uri, TABLE.uri, desk.world.clock.now_s())
    assert (row.state, row.watermark.version, row.seq) == (JobState.COMPLETED, -1, 0)


def test_what_a_job_will_not_keep_of_its_source_is_said_in_the_answer(desk: Desk) -> None:
    columns = {"id": "long", "none": "void", "s": "struct"}
    desk.catalog.tables[TABLE.uri] = replace(TABLE, columns=columns, void=("none", "s.y"))
    narrow = RegisterRequest(JobName(TABLE.uri, "narrow"), spec("/targets/narrow", columns=["id"]))
    wide, few = desk.admin.register([request(request_id="r-1"), narrow])
    assert wide.warning == "not kept, as they are of the type void, until the source gives them another: none, s.y"
    assert few.warning == ""
    assert desk.admin.resync(ResyncRequest(X)).warning == wide.warning


def test_what_is_there_already_is_answered_and_not_changed_nor_checked_again(desk: Desk) -> None:
    (first,) = desk.admin.register([request()])
    desk.kind.refusals["/targets/x"] = InvalidRequest("has rows by now")
    (again,) = desk.admin.register([request()])
    assert (again.created, again.job_id) == (False, first.job_id)
    assert desk.rows() == 1


def test_another_job_of_the_name_is_said_with_the_fields_in_which_it_differs(desk: Desk) -> None:
    (first,) = desk.admin.register([request()])
    other = parse_spec(request().spec_json)
    other = replace(other, priority=5, consumer=replace(other.consumer, where="a > 1"))
    (again,) = desk.admin.register([replace(request(), spec_json=other.to_json())])
    assert (again.created, again.job_id) == (False, first.job_id)
    assert again.warning.startswith(
        "another job is named 'x' here, and was left as it is: it differs in where, priority. See how by"
    )
    assert desk.admin.register([request()])[0].warning == ""


def test_a_request_that_is_repeated_gets_the_first_answer(desk: Desk) -> None:
    first = desk.admin.register([request(request_id="r-1")])
    assert desk.admin.register([request(request_id="r-1")]) == first
    assert desk.rows() == 1


def test_the_target_is_logged_in_the_catalogs_one_spelling(desk: Desk) -> None:
    desk.admin.register([request(target="/targets/x/")])
    assert desk.row().spec.consumer.target == "/targets/x"
    with pytest.raises(InvalidRequest, match="is the target of job 'x'"):
        desk.admin.register([request("y", target="//targets/x")])


@pytest.mark.parametrize(
    ("bad", "field", "code"),
    [
        (request(name="  "), "job.name", ErrorCode.INVALID_REQUEST),
        (request(name="n" * (JOB_NAME_LENGTH_MAX + 1)), "job.name", ErrorCode.INVALID_REQUEST),
        (request(name="\u0441\u043e\u0440\u0443"), "job.name", ErrorCode.INVALID_REQUEST),  # looks like Latin
        (request(name="\uff53\uff59\uff53\uff54\uff45\uff4d"), "job.name", ErrorCode.INVALID_REQUEST),  # as `system`
        (request(name="\u3164"), "job.name", ErrorCode.INVALID_REQUEST),  # a letter that is not seen
        (request(name="copy\u0301"), "job.name", ErrorCode.INVALID_REQUEST),
        (request(name="co\u200bpy"), "job.name", ErrorCode.INVALID_REQUEST),
        (RegisterRequest(JobName(TABLE.uri, "x", " "), spec()), "job.account", ErrorCode.INVALID_REQUEST),
        (RegisterRequest(JobName(TABLE.uri, "x", "a*"), spec()), "job.account", ErrorCode.INVALID_REQUEST),
        *(
            (request(name=name), "job.name", ErrorCode.INVALID_REQUEST)
            for name in ("a\nb", "\x1b[31mred", "copy*", "co?y", "co[p]y", "--help", "-o", " x", "x ", "\udc80")
        ),
        (request(target="/targets/a\nb"), "spec.iteration.consumer.target", ErrorCode.INVALID_REQUEST),
        (request(table="/tables/none"), "table", ErrorCode.TABLE_NOT_FOUND),
        (RegisterRequest(X, "not json"), "spec", ErrorCode.INVALID_REQUEST),
        (RegisterRequest(X, spec(bogus=1)), "spec.iteration.consumer.bogus", ErrorCode.INVALID_REQUEST),
        (RegisterRequest(X, '{"iteration":{"consumer":{"kind":"none"}}}'), "spec.iteration.consumer.kind", 10_000),
        (request(target="/refused"), "spec.iteration.consumer.target", ErrorCode.TARGET_UNUSABLE),
    ],
)
def test_all_or_none_are_registered_and_a_fault_is_reported_by_its_field(
    desk: Desk, bad: RegisterRequest, field: str, code: int
) -> None:
    desk.kind.refusals["/refused"] = InvalidRequest(
        "is not ours", field="spec.iteration.consumer.target", code=ErrorCode.TARGET_UNUSABLE
    )
    good = request("good")
    for requests, path in (
        ([good, bad], f"requests[1].{field}"),
        ([bad, good], f"requests[0].{field}"),
        ([bad], field),
    ):
        with pytest.raises(InvalidRequest) as refused:
            desk.admin.register(requests)
        assert (refused.value.field, refused.value.code) == (path, code)
    assert desk.rows() == 0
    assert desk.admin.list_jobs(JobFilter()) == []


def test_two_of_one_request_that_want_one_target_are_both_refused(desk: Desk) -> None:
    with pytest.raises(InvalidRequest, match="is the target of") as refused:
        desk.admin.register([request(), request("y", target="/targets/x")])
    assert refused.value.field == "spec.iteration.consumer.target"
    assert desk.rows() == 0


def test_a_copy_of_a_table_is_a_table_of_its_own(desk: Desk) -> None:
    desk.catalog.tables["/tables/copy"] = replace(TABLE, uri="/tables/copy", version=1)
    first = desk.running()
    on_copy = request(table="/tables/copy", target="/targets/copy")
    (result,) = desk.admin.register([on_copy])
    assert result.created
    assert result.job_id != first.job_id
    assert desk.admin.register([on_copy]) == [replace(result, created=False)]
    assert desk.admin.status(JobName("/tables/copy", "x")).job_id == result.job_id
    (checked,) = desk.admin.check([on_copy])
    assert (checked.action, checked.job_id, checked.error) == (Action.UNCHANGED, result.job_id, None)
    # What is seen of one says nothing of the other.
    desk.reach(first, 7)
    desk.world.see(9, lag_s=30.0)
    until(lambda: desk.admin.status(X).source_version == 9)
    assert desk.admin.status(JobName("/tables/copy", "x")).source_version == -1


def test_two_registrations_at_once_of_one_name_on_two_copies_are_two_jobs(desk: Desk) -> None:
    desk.catalog.tables["/tables/copy"] = replace(TABLE, uri="/tables/copy")
    both = [request(), request(table="/tables/copy", target="/targets/copy")]
    results = desk.admin.register(both)  # neither is in the book while the other is checked
    assert [result.created for result in results] == [True, True]
    assert {view.table: view.job_id for view in desk.admin.list_jobs(JobFilter())} == {
        TABLE.uri: results[0].job_id,
        "/tables/copy": results[1].job_id,
    }


def test_ids_sort_by_time_also_when_the_clock_steps_back_and_the_owner_changes(desk: Desk) -> None:
    ids = [result.job_id for result in desk.admin.register([request("a"), request("b", target="/targets/b")])]
    desk.world.clock.step(-3_600)
    ids += [desk.admin.register([request(name)])[0].job_id for name in "cd"]
    assert asked(desk, "unregister", JobName(TABLE.uri, "d"))
    writer = desk.world.owner.writer
    desk.world.etcd.depose()
    until(lambda: desk.world.owner.writer not in (None, writer))
    other = desk.new_admin()  # of another node
    ids.append(other.register([request("d")])[0].job_id)
    assert ids == sorted(set(ids))


def test_registrations_at_once_get_ids_of_their_own(desk: Desk) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: desk.admin.register([request(f"j{n}")])[0], range(40)))
    assert len({result.job_id for result in results}) == 40


def test_what_the_storage_refused_was_not_registered(desk: Desk) -> None:
    desk.world.logs[-1].faults.append(StorageError("disk full", code=ErrorCode.NO_SPACE))
    with pytest.raises(StorageError):
        desk.admin.register([request()])
    assert desk.rows() == 0


def test_between_terms_changes_and_questions_are_refused(desk: Desk) -> None:
    """Another owner may have changed the jobs since: the caller is sent on to that one."""
    desk.admin.register([request()])
    desk.world.owner.on_lost()
    until(lambda: desk.world.owner.writer is None)
    for change in (
        lambda: desk.admin.register([request("y")]),
        lambda: asked(desk, "pause", X),
        lambda: asked(desk, "unregister", X),
    ):
        with pytest.raises((NotOwner, OutcomeUnknown)):
            change()
    for question in (
        lambda: desk.admin.status(X),
        lambda: desk.admin.list_jobs(JobFilter()),
        lambda: desk.admin.count_jobs(JobFilter()),
        lambda: desk.admin.cluster(),
    ):
        with pytest.raises(NotOwner):
            question()


def test_a_resync_is_a_new_registration_in_the_log_which_the_node_is_notified_of(desk: Desk) -> None:
    old = desk.running()
    desk.reach(old, 7, JobState.ERROR, Reason.NONE, JobStatus(error_code=ErrorCode.SOURCE_REPLACED))
    result = desk.admin.resync(ResyncRequest(X))
    new = desk.row()
    assert result.job_id == new.job_id > old.job_id
    assert (new.watermark.version, new.seq, new.state, new.status_json) == (-1, 8, JobState.COMPLETED, "")
    assert (new.spec_json, new.table_name, new.table_uri) == (old.spec_json, old.table_name, old.table_uri)
    until(lambda: desk.world.dispatched("t-1") == [new.job_id])
    desk.world.report(old, 9)
    desk.world.settle()
    assert desk.admin.status(X).applied_version == -1


def test_a_job_follows_its_source_to_the_id_of_the_table_that_is_there_now(desk: Desk) -> None:
    desk.admin.register([request(), request("y")])
    desk.catalog.tables[TABLE.uri] = replace(TABLE, table_id="t-anew")
    assert desk.admin.resync(ResyncRequest(X)).table_id == "t-anew"
    assert desk.admin.status(X).table_id == "t-anew"
    # The other job is on the table that was there before, and still found by the same path.
    y = JobName(TABLE.uri, "y")
    assert desk.admin.status(y).table_id == "t-1"
    assert len(desk.admin.list_jobs(JobFilter(table=TABLE.uri))) == desk.admin.notify(TABLE.uri) == 2
    until(lambda: desk.world.dispatched("t-anew") and len(desk.world.dispatched("t-1")) == 1)
    assert desk.admin.resync(ResyncRequest(y)).table_id == "t-anew"


def test_a_job_is_moved_to_another_table_with_another_spec(desk: Desk) -> None:
    desk.admin.register([request()])
    result = desk.admin.resync(ResyncRequest(X, OTHER.uri, spec("/targets/x/", key=["id"]), "r-1"))
    assert desk.admin.resync(ResyncRequest(X, OTHER.uri, request_id="r-1")) == result
    row = desk.row(table_id="t-2")
    assert (row.table_name, row.table_uri, row.spec.consumer.key) == (OTHER.uri, OTHER.uri, ("id",))
    assert row.spec.consumer.target == "/targets/x"
    assert desk.rows() == 3
    with pytest.raises(TableNotFound):
        desk.admin.status(X)


def test_a_resync_is_checked_as_a_registration_is_before_anything_is_written(desk: Desk) -> None:
    desk.admin.register([request(), request("y")])
    desk.admin.register([request("x", OTHER.uri, "/targets/z")])
    bad = "spec.iteration.consumer"
    desk.kind.refusals["/refused"] = InvalidRequest("is not ours", field=f"{bad}.target")
    for asked_for, field in (
        (ResyncRequest(JobName(TABLE.uri, "none")), "job"),
        (ResyncRequest(X, "/tables/none"), "table"),
        (ResyncRequest(X, OTHER.uri), "table"),
        (ResyncRequest(X, spec_json="not json"), "spec"),
        (ResyncRequest(X, spec_json=spec("/refused")), f"{bad}.target"),
        (ResyncRequest(X, spec_json=spec("/targets/y")), f"{bad}.target"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            desk.admin.resync(asked_for)
        assert refused.value.field == field
    del desk.catalog.tables[TABLE.uri]
    with pytest.raises(TableNotFound, match="unregister the job"):
        desk.admin.resync(ResyncRequest(X))
    assert desk.rows() == 3


def test_a_source_is_not_named_by_a_link_and_jobs_are_still_found_by_one(desk: Desk) -> None:
    desk.catalog.links = {"/links/orders": TABLE.uri}
    linked = JobName("/links/orders", "x")
    for wanted in ([request(table="/links/orders")], [request(), request("y", table="/links/orders")]):
        with pytest.raises(InvalidRequest, match=r"links/orders is a link\. Give /tables/orders") as refused:
            desk.admin.register(wanted)
        assert refused.value.field.endswith("table")
    assert desk.rows() == 0
    assert lines(desk, request(table="/links/orders")) == [("create", "", "table")]
    desk.admin.register([request()])
    with pytest.raises(InvalidRequest, match="is a link") as refused:
        desk.admin.resync(ResyncRequest(X, "/links/orders"))
    assert refused.value.field == "table"
    assert desk.admin.status(linked).job_id == desk.row().job_id
    assert asked(desk, "pause", linked)
    assert desk.admin.resync(ResyncRequest(linked)).job_id


def test_many_are_resynced_each_for_itself(desk: Desk) -> None:
    desk.admin.register([request(), request("y")])
    before = [desk.row(name).job_id for name in "xy"]
    names = [JobName(TABLE.uri, name) for name in ("x", "none", "y")]
    changes = [JobChange(ChangeVerb.RESYNC, job, f"r-{job.name}") for job in names]
    for _ in range(2):
        done, unknown, also = desk.admin.change(changes)
        assert (done, also) == (True, True)
        assert isinstance(unknown, JobNotFound)
    after = [desk.row(name).job_id for name in "xy"]
    assert before < after
    assert desk.rows() == 6


def lines(desk: Desk, *requests: RegisterRequest) -> list[tuple[str, str, str]]:
    """(action, job that is there, fault) of each."""
    checked = desk.admin.check(requests)
    return [(str(each.action), each.job_id, each.error.field if each.error else "") for each in checked]


def test_a_check_reports_what_each_job_takes_and_writes_nothing(desk: Desk) -> None:
    first, second, third = (result.job_id for result in desk.admin.register([request(name) for name in "xyz"]))
    later = replace(request("y"), spec_json=json.dumps({**json.loads(spec("/targets/y")), "target_lag": 5}))
    filtered = replace(request("z"), spec_json=spec("/targets/z", where="id > 1"))
    assert lines(desk, request("x", target="/targets/x/"), later, filtered, request("new")) == [
        ("unchanged", first, ""),
        ("update", second, ""),
        ("resync", third, ""),
        ("create", "", ""),
    ]
    (kept,) = desk.admin.check([request("x", target="/targets/x/")])
    assert (kept.table_id, kept.there_id, kept.spec_json) == ("t-1", "t-1", desk.row("x").spec_json)
    assert desk.rows() == 3


def test_a_check_finds_the_faults_of_each_on_top_of_those_before_it(desk: Desk) -> None:
    desk.admin.register([request()])
    desk.kind.refusals["/refused"] = InvalidRequest("no", about="spec.iteration.consumer.target")
    target = "spec.iteration.consumer.target"
    assert lines(
        desk,
        request("a", target="/targets/x"),
        request("b"),
        request("c", target="/targets/b"),
        request("d", table="/tables/none"),
        request("e", target="/refused"),
        request("x", target="/refused"),
        RegisterRequest(JobName(TABLE.uri, "f"), "not json"),
        request(" "),
    ) == [
        ("create", "", target),
        ("create", "", ""),
        ("create", "", target),
        ("create", "", "table"),
        ("create", "", target),
        ("create", "", target),
        ("create", "", "spec"),
        ("create", "", "job.name"),
    ]


def test_a_check_finds_a_job_on_the_table_that_was_there_before(desk: Desk) -> None:
    desk.admin.register([request()])
    desk.catalog.tables[TABLE.uri] = replace(TABLE, table_id="t-anew")
    (checked,) = desk.admin.check([request()])
    assert (checked.action, checked.there_id, checked.table_id, checked.error) == ("resync", "t-1", "t-anew", None)
    desk.kind.refusals["/targets/x"] = InvalidRequest("is kept by nobody knows whom")
    assert desk.admin.check([request()])[0].error is not None


def test_jobs_that_have_followed_a_replaced_table_are_its_jobs(desk: Desk) -> None:
    x = desk.running()
    desk.catalog.tables[TABLE.uri] = replace(TABLE, table_id="t-2")
    desk.reach(x, 7, JobState.COMPLETED, Reason.NONE, JobStatus(source_id="t-2"))
    assert lines(desk, request()) == [("unchanged", x.job_id, "")]
    assert desk.admin.register([request()])[0].job_id == x.job_id
    assert desk.admin.register([request("y")])[0].table_id == "t-1"
    assert len(desk.admin.list_jobs(JobFilter(table="t-2"))) == 2
    assert desk.admin.status(JobName("t-2", "x")).table_id == "t-1"
    # One is rebuilt on the table that is there now; the others are still what they were.
    assert desk.admin.resync(ResyncRequest(JobName(TABLE.uri, "y"))).table_id == "t-2"
    assert lines(desk, request(), request("y")) == [
        ("unchanged", x.job_id, ""),
        ("unchanged", desk.row("y", "t-2").job_id, ""),
    ]
    assert desk.admin.register([request()])[0].job_id == x.job_id
    assert desk.admin.register([request("z")])[0].table_id == "t-2"


def test_what_is_unchanged_is_not_checked_again(desk: Desk) -> None:
    desk.admin.register([request()])
    desk.kind.refusals["/targets/x"] = InvalidRequest("has rows by now")
    assert desk.admin.check([request()])[0].error is None


def adopting(version: int, target: str = "/targets/x", kind: str = "replica") -> RegisterRequest:
    iteration = {"adopt_from": version, "consumer": {"kind": kind, "target": target}}
    return RegisterRequest(X, json.dumps({"iteration": iteration}))


def test_a_table_that_is_taken_over_has_to_be_there_and_the_version_in_the_log(desk: Desk) -> None:
    desk.catalog.tables["/targets/x"] = replace(OTHER, table_id="t-9", uri="/targets/x", empty=False)
    desk.kind.refusals["/targets/y"] = InvalidRequest("has other columns", field="spec.iteration.consumer.target")
    desk.catalog.tables["/targets/y"] = replace(OTHER, table_id="t-8", uri="/targets/y")
    for bad, field in (
        (adopting(8), "spec.iteration.adopt_from"),
        (adopting(3, "/targets/none"), "spec.iteration.consumer.target"),
        (adopting(3, "/targets/y"), "spec.iteration.consumer.target"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            desk.admin.register([bad])
        assert refused.value.field == field
    assert desk.rows() == 0
    desk.admin.register([adopting(7)])
    assert desk.row().spec.adopt_from == 7
    desk.admin.resync(ResyncRequest(X))
    assert desk.row().spec.adopt_from is None


def test_not_every_consumer_takes_over_a_table(desk: Desk) -> None:
    class Plain:
        name, adopting = "plain", None

    desk.kind = Plain()  # type: ignore[assignment]
    with pytest.raises(InvalidRequest, match="takes over no table"):
        desk.admin.register([adopting(7)])


def test_jobs_are_listed_and_counted_by_table_state_and_reason(desk: Desk) -> None:
    desk.admin.register([request("x"), request("y"), request("z", OTHER.uri)])
    asked(desk, "pause", JobName(TABLE.uri, "y"))
    wanted = {
        (JobFilter(), 3),
        (JobFilter(table=TABLE.uri), 2),
        (JobFilter(reason=Reason.PAUSED), 1),
        (JobFilter(table=OTHER.uri, reason=Reason.PAUSED), 0),
        (JobFilter(state=JobState.COMPLETED), 3),
        (JobFilter(state=JobState.ERROR), 0),
        (JobFilter(account="nobody"), 0),
        (JobFilter(table_pattern="/tables/*"), 3),
        (JobFilter(table_pattern="*/items"), 1),
        (JobFilter(table=TABLE.uri, name_pattern="[xz]"), 1),
        (JobFilter(table_pattern="/tables/orders", name_pattern="y", reason=Reason.PAUSED), 1),
        (JobFilter(table_pattern="none*"), 0),
    }
    for each, number in wanted:
        assert len(desk.admin.list_jobs(each)) == desk.admin.count_jobs(each) == number
    assert len(desk.admin.list_jobs(JobFilter(limit=2))) == 2
    assert [view.name for view in desk.admin.list_jobs(JobFilter(name_pattern="[yz]", limit=1))] == ["y"]
    with pytest.raises(TableNotFound):
        desk.admin.list_jobs(JobFilter(table="/tables/none"))


def test_the_history_is_the_newest_first_also_before_it_is_written(desk: Desk) -> None:
    row = desk.running()

    def entry(seq: int) -> HistoryEntry:
        return HistoryEntry(
            "default", "t-1", "x", row.job_id, seq, 0, seq, 1.0, 2.0 + seq, 1.0, 0, "", 1, 1, "tail", "n"
        )

    desk.world.report(row, 1, history=[entry(1), entry(2)])
    until(lambda: [e.seq for e in desk.admin.history(X, 10)] == [2, 1])
    assert [e.seq for e in desk.admin.history(X, 1)] == [2]
    with pytest.raises(JobNotFound):
        desk.admin.history(JobName(TABLE.uri, "none"), 1)


def lag(desk: Desk) -> tuple[float, float]:
    """How much it lags for certain, and at most."""
    view = desk.admin.status(X)
    return view.lag_least_s, view.lag_s


def test_of_a_job_that_is_up_to_date_it_is_known_only_as_of_the_last_probe(desk: Desk) -> None:
    row = desk.running()
    desk.reach(row, 7)
    assert lag(desk) == (-1.0, -1.0), "nobody has probed it"
    desk.world.see(7)
    desk.world.clock.advance(50.0)
    view = desk.admin.status(X)
    assert (view.lag_s, view.source_version, view.applied_version, view.node_id) == (50.0, 7, 7, "n-1")
    assert view.lag_least_s == 0.0
    assert view.checked_at_s == desk.world.clock.now_s() - 50.0


def test_of_a_job_that_is_behind_the_version_that_it_is_at_says_since_when(desk: Desk) -> None:
    row = desk.running()
    desk.world.clock.advance(5.0)
    assert lag(desk) == (5.0, 5.0), "since it was registered, as nothing is built"
    desk.reach(row, 7)
    desk.world.see(9, lag_s=90.0, ages=(VersionAge(4, 90.0), VersionAge(7, 30.0)))
    desk.world.clock.advance(2.0)
    assert lag(desk) == (32.0, 32.0), "the slowest of the table is another job"
    assert desk.admin.status(X).source_version == 9
    desk.world.see(9, lag_s=90.0, ages=(VersionAge(4, 90.0), VersionAge(6, 40.0)))
    assert lag(desk) == (0.001, 40.0), "of versions between two probes only the most is known"
    desk.world.clock.step(-100.0)
    assert lag(desk) == (0.001, 40.0)


def test_a_probe_by_a_clock_that_is_ahead_hides_no_lag(desk: Desk) -> None:
    desk.reach(desk.running(), 7)
    ahead_s = desk.world.clock.now_s() + 30 * 86_400.0
    desk.world.see(7, checked_at_s=ahead_s)
    desk.world.clock.advance(40.0)
    assert lag(desk) == (0.0, 40.0)
    desk.world.see(9, lag_s=10.0, checked_at_s=ahead_s, ages=(VersionAge(7, 10.0),))
    desk.world.clock.advance(5.0)
    assert lag(desk) == (15.0, 15.0)


def test_a_job_past_its_target_lag_is_late_and_so_is_one_that_takes_longer_to_build(desk: Desk) -> None:
    row = desk.running()
    desk.admin.update([UpdateRequest(X, '{"target_lag":30}')])
    assert not desk.admin.status(X).late
    desk.world.clock.advance(31.0)
    assert desk.admin.status(X).late, "nothing is built yet"
    desk.reach(row, 7)
    desk.world.see(9, lag_s=1.0, ages=(VersionAge(7, 1.0),))
    assert not desk.admin.status(X).late
    desk.world.clock.advance(31.0)
    assert desk.admin.status(X).late
    desk.admin.register([request("a"), request("b")])
    late = JobFilter(late=True, limit=1)
    assert [job.name for job in desk.admin.list_jobs(late)] == ["x"], "those that are in time do not use up the limit"
    assert desk.admin.count_jobs(late) == 1
    desk.admin.update([UpdateRequest(X, '{"target_lag":60}')])
    assert not desk.admin.status(X).late
    assert desk.admin.count_jobs(late) == 0


def test_lag_counts_the_time_in_which_nobody_probes(desk: Desk) -> None:
    row = desk.running()
    desk.reach(row, 7)
    desk.world.see(7)
    seen_s = desk.world.clock.now_s()
    desk.world.owner.on_members_changed((), Moment(0, desk.world.etcd.revision + 1))
    until(lambda: desk.world.pass_s(1.0) or not desk.admin.status(X).node_id)  # type: ignore[func-returns-value]
    desk.world.clock.advance(seen_s + 40.0 - desk.world.clock.now_s())
    assert desk.admin.status(X).lag_s == 40.0
    assert desk.admin.cluster().lag_max_s == 40.0


def test_lag_counts_the_time_since_the_last_probe_where_the_table_cannot_be_probed(desk: Desk) -> None:
    desk.reach(desk.running(), 7)
    probed_at_s = desk.world.clock.now_s()
    desk.world.see(7)
    desk.world.see(7, unreached=True, checked_at_s=probed_at_s)
    desk.world.clock.advance(40.0)
    assert lag(desk) == (0.0, 40.0)
    assert desk.admin.cluster().lag_max_s == 40.0
    desk.world.see(-1, unreached=True, checked_at_s=0.0)
    assert lag(desk) == (0.0, 40.0), "by another node, which never could"
    desk.world.see(7)
    assert lag(desk) == (0.0, 0.0)


def test_of_a_table_that_nobody_could_ever_probe_no_lag_is_known(desk: Desk) -> None:
    desk.reach(desk.running(), 7)
    desk.world.see(7, unreached=True, checked_at_s=0.0)
    assert lag(desk) == (-1.0, -1.0)


def test_the_clusters_lag_is_that_of_its_stalest_job_though_it_is_stopped(desk: Desk) -> None:
    desk.reach(desk.running(), 7)
    asked(desk, "pause", X)
    desk.world.see(9, lag_s=0.0)
    desk.world.clock.advance(60.0)
    assert lag(desk)[1] >= 60.0
    view = desk.admin.cluster()
    assert (view.lag_max_least_s, view.lag_max_s) == lag(desk)


def test_the_cluster_as_the_owner_sees_it(desk: Desk) -> None:
    desk.running()
    desk.world.clock.advance(4.0)
    view = desk.admin.cluster()
    assert (view.owner, view.owner_rev, view.jobs, view.lag_max_s) == ("n-1", 1, 1, 4.0)
    assert view.counters == desk.calls.counts
    (node,) = view.nodes
    assert (node.state, node.lease_age_s, node.in_flight) == ("ready", 0.0, 0)
    assert (node.node_id, node.pid, node.epoch, node.shards) == ("n-1", 7, 1, 1)
    assert (node.queue_waiting, node.queue_running) == (2, 1)
    (shard,) = view.shards
    assert (shard.table_id, shard.table, shard.node_id, shard.state, shard.jobs) == (
        "t-1",
        TABLE.uri,
        "n-1",
        "running",
        1,
    )


def test_the_cluster_is_not_shown_while_etcd_does_not_answer(desk: Desk) -> None:
    """Nobody knows then whether what the owner has seen is still so."""
    desk.running()
    desk.world.etcd.answers = False
    with pytest.raises(Unavailable, match="etcd does not answer this node") as silent:
        desk.admin.cluster()
    assert silent.value.remedy.startswith("Check whether etcd runs")
    desk.world.owner.on_lost()
    until(lambda: desk.world.owner.writer is None)
    with pytest.raises(NotOwner, match="no owner has claimed the job log yet: etcd does not answer this node"):
        desk.admin.cluster()
    desk.world.etcd.answers = True
    desk.world.clock.advance(ASK_PAUSE_S)
    with pytest.raises(NotOwner, match="try again in a moment"):
        desk.admin.cluster()


def test_a_comparison_is_requested_from_the_tables_node_and_its_answer_comes_back(desk: Desk) -> None:
    desk.reach(desk.running(), 7)
    report = VerifyReport(7, 3, Comparison())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(desk.admin.verify, X, True, 30.0, lambda: True)
        until(lambda: desk.asks)
        (asked,) = desk.asks
        assert isinstance(asked, VerifyRequested)
        assert (asked.request.shard, asked.request.job_id, asked.request.repair) == (
            ShardId("t-1"),
            desk.row().job_id,
            True,
        )
        desk.verifying.answer(VerifyAnswered(asked.request.verify_id, report))
        assert waiting.result(10.0) == report


def test_what_cannot_be_compared_is_refused_before_anything_is_called(desk: Desk) -> None:
    row = desk.running()
    with pytest.raises(JobFailed, match="has not been built yet"):
        desk.admin.verify(X, False, 1.0, lambda: True)
    desk.reach(row, 5)
    asked(desk, "pause", X)
    with pytest.raises(JobFailed, match="is paused, and a repair writes") as refused:
        desk.admin.verify(X, True, 1.0, lambda: True)
    assert (refused.value.field, "job resume" in refused.value.remedy) == ("repair", True)
    assert desk.asks == []
    with pytest.raises(TimedOut):  # who only looks may look at a paused job
        desk.admin.verify(X, False, 0.0, lambda: True)
    asked(desk, "resume", X)
    fail(desk, row)
    until(lambda: desk.admin.status(X).state is JobState.ERROR)
    with pytest.raises(JobFailed, match="has failed: rows share a key"):
        desk.admin.verify(X, False, 1.0, lambda: True)
    asked(desk, "unregister", X)
    with pytest.raises((JobNotFound, TableNotFound)):
        desk.admin.verify(X, False, 1.0, lambda: True)


class Refreshing(FakeKind):
    def refresh(self, job: JobRow) -> tuple[list[str], float]:
        return [], 1.0


def test_the_refreshes_of_a_job_are_in_its_status_where_its_consumer_has_any(desk: Desk) -> None:
    row, figures = desk.running(), MaintenanceFigures(submitted=2, failed=1, error_code=3, error_msg="too long")
    desk.calls.upkeeps[row.job_id] = JobMaintenance(refresh=figures)
    assert desk.admin.status(X).upkeep == NO_MAINTENANCE, "a node is not asked in vain"
    desk.kind = Refreshing()
    assert desk.admin.status(X).upkeep == JobMaintenance(refresh=figures)
    assert [job.upkeep for job in desk.admin.list_jobs(JobFilter())] == [NO_MAINTENANCE]
    desk.calls.upkeeps[row.job_id] = Unavailable("away")
    assert desk.admin.status(X).upkeep == NO_MAINTENANCE


def test_progress_is_read_from_the_node_only_while_an_iteration_is_reported_to_run(desk: Desk) -> None:
    row = desk.running()
    desk.calls.runs[row.job_id] = PROGRESS
    assert desk.admin.status(X).progress is None
    assert desk.calls.asked == [], "an idle job costs no call"
    desk.world.report(row, 3, JobState.RUNNING, Reason.NONE, JobStatus())
    until(lambda: desk.admin.status(X).state is JobState.RUNNING)
    assert desk.admin.status(X).progress == PROGRESS
    assert [job.progress for job in desk.admin.list_jobs(JobFilter())] == [None]
    desk.calls.runs[row.job_id] = Unavailable("away")
    assert desk.admin.status(X).progress is None


def test_progress_of_a_comparison_is_read_while_it_is_requested(desk: Desk) -> None:
    row = desk.running()
    desk.reach(row, 7)
    desk.calls.runs[row.job_id] = PROGRESS
    alive = threading.Event()
    alive.set()

    def verify() -> None:
        with pytest.raises(Unavailable):
            desk.admin.verify(X, False, 60.0, alive.is_set)

    caller = threading.Thread(target=verify)
    caller.start()
    until(lambda: bool(desk.asks))
    assert desk.admin.status(X).progress == PROGRESS
    alive.clear()
    caller.join()
    assert desk.admin.status(X).progress is None


def test_a_spec_that_was_damaged_in_the_log_hides_no_job(desk: Desk) -> None:
    row = desk.running()
    writer = desk.world.owner.current_writer()
    writer.read(lambda book: book._jobs.update({row.key: row._replace(spec_json='{"target_lag":')}))
    assert [job.late for job in desk.admin.list_jobs(JobFilter())] == [False]
    assert desk.admin.status(X).upkeep == NO_MAINTENANCE
