"""Pauses, resumes, updates and removals, of one job and of many.

Jobs that are deleted with their targets: what is refused at once, and what follows when a node has done it.

A job that reads several tables is fresh when it has come as far in each of them, and hears of commits of each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from iscp.cluster.owner.job_log_writer import LogLimits
from iscp.model.api.api_requests import (
    ChangeVerb,
    JobChange,
    JobFilter,
    JobName,
    RegisterRequest,
    ResyncRequest,
    UpdateRequest,
)
from iscp.model.job.job_row import Deletion, JobRow, JobState, JobStatus, Reason
from iscp.model.job.registration_id import marked_job_id, spec_mark
from iscp.model.protocol.messages import FurtherSeen, VersionAge
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.spec.spec_parsing import parse_spec
from iscp.model.values.errors import (
    ErrorCode,
    InvalidRequest,
    JobNotFound,
    OutcomeUnknown,
    StorageError,
    TableNotFound,
    TimedOut,
)
from iscp.model.values.ids import ShardId
from iscp.model.values.watermark import SourceMark, Watermark
from iscp.ports.consumer import ConsumerEnvironment
from iscp.ports.sink import Deleted, DeletionOrder
from iscp.ports.source import Catalog, TableDescription
from tests.fakes.desk import OTHER, TABLE, Desk, Waiter, X, asked, request, spec
from tests.fakes.pipeline import FakeKind
from tests.fakes.waiting import until


def test_pause_and_resume_answer_whether_they_changed_anything(desk: Desk) -> None:
    desk.admin.register([request()])
    assert [asked(desk, "pause", X), asked(desk, "pause", X)] == [True, False]
    assert desk.row().reason is Reason.PAUSED
    assert [asked(desk, "resume", X), asked(desk, "resume", X)] == [True, False]
    for verb in ("pause", "resume"):
        with pytest.raises(JobNotFound):
            asked(desk, verb, JobName(TABLE.uri, "none"))


def test_of_many_changes_each_is_answered_for_itself_and_in_order(desk: Desk) -> None:
    desk.admin.register([request(), request("y")])
    y, none, nowhere = JobName(TABLE.uri, "y"), JobName(TABLE.uri, "none"), JobName("/tables/none", "x")
    outcomes = desk.admin.change(
        [
            *(JobChange(ChangeVerb.PAUSE, job, str(number)) for number, job in enumerate((X, none, y, nowhere))),
            JobChange(ChangeVerb.PAUSE, X, "again"),
            JobChange(ChangeVerb.RESUME, y, "0"),
            JobChange(ChangeVerb.UNREGISTER, none, "none"),
        ]
    )
    assert [type(outcome) for outcome in outcomes] == [
        bool,
        JobNotFound,
        bool,
        TableNotFound,
        bool,
        InvalidRequest,
        bool,
    ]
    assert [outcome for outcome in outcomes if isinstance(outcome, bool)] == [True, True, False, False]
    assert desk.row().reason is desk.row("y").reason is Reason.PAUSED
    assert desk.admin.change([]) == []


def test_changes_that_the_storage_refused_fail_as_a_whole(desk: Desk) -> None:
    desk.admin.register([request()])
    desk.world.logs[-1].faults.append(StorageError("disk full", code=ErrorCode.NO_SPACE))
    with pytest.raises(StorageError):
        desk.admin.change([JobChange(ChangeVerb.PAUSE, JobName(TABLE.uri, name)) for name in ("none", "x")])
    assert desk.row().reason is Reason.NONE


def test_changes_of_which_some_were_made_have_an_unknown_outcome_and_can_be_repeated(desk: Desk) -> None:
    names = [f"j{number}" for number in range(LogLimits().batch_requests_max + 1)]
    desk.admin.register([request(name) for name in names])
    changes = [JobChange(ChangeVerb.PAUSE, JobName(TABLE.uri, name), f"r-{name}") for name in names]
    desk.world.logs[-1].faults += [None, StorageError("disk full", code=ErrorCode.NO_SPACE)]
    with pytest.raises(OutcomeUnknown, match="1 of 2001 changes failed"):
        desk.admin.change(changes)
    assert desk.admin.change(changes) == [True] * len(names)


def test_updates_are_in_the_log_when_they_are_answered_each_for_itself(desk: Desk) -> None:
    desk.admin.register([request("x"), request("y")])
    wrong, missing = '{"trigger":{"schedule":{"interval":5}}}', JobName(TABLE.uri, "none")
    updates = [
        UpdateRequest(X, '{"target_lag":60}'),
        UpdateRequest(JobName(TABLE.uri, "y"), wrong),
        UpdateRequest(missing, "{}"),
        UpdateRequest(X, '{"target_lag":60}'),
    ]
    first, refused, unknown, again = desk.admin.update(updates)
    assert (first, again) == (True, False)
    assert isinstance(refused, InvalidRequest)
    assert refused.field == "spec.trigger.schedule.interval"
    assert isinstance(unknown, JobNotFound)
    assert desk.row("x").spec.target_lag_s == 60.0
    assert desk.rows() == 3
    assert desk.interrupted == []


def test_a_trigger_that_is_not_allowed_is_refused_before_anything_is_written(desk: Desk) -> None:
    def trigger(name: str) -> str:
        return json.dumps({"trigger": {"job_type": "custom", "name": name}})

    desk.admin.register([request("x")])
    refused, taken = desk.admin.update([UpdateRequest(X, trigger("mine")), UpdateRequest(X, trigger("nightly"))])
    assert isinstance(refused, InvalidRequest)
    assert (refused.field, taken) == ("spec.trigger.name", True)
    spec_json = json.dumps(json.loads(spec("/targets/y")) | json.loads(trigger("mine")))
    with pytest.raises(InvalidRequest, match="is not allowed"):
        desk.admin.register([RegisterRequest(JobName(TABLE.uri, "y"), spec_json)])
    assert desk.rows() == 2


def test_a_job_is_not_updated_to_want_a_feed_that_is_off(desk: Desk) -> None:
    desk.admin.register([request("x")])
    wanted = UpdateRequest(X, '{"iteration":{"change_source":"cdf"}}')
    (refused,) = desk.admin.update([wanted])
    assert isinstance(refused, InvalidRequest)
    assert refused.field == "spec.iteration.change_source"
    assert desk.rows() == 1
    desk.catalog.tables[TABLE.uri] = replace(TABLE, configuration={"delta.enableChangeDataFeed": "true"})
    assert desk.admin.update([wanted]) == [True]


def test_an_update_interrupts_what_runs_once_it_is_in_the_log(desk: Desk) -> None:
    desk.running()
    update = UpdateRequest(X, '{"trigger":{"job_type":"greedy"}}', interrupt=True, request_id="r-1")
    desk.world.logs[-1].faults.append(StorageError("disk full", code=ErrorCode.NO_SPACE))
    with pytest.raises(StorageError):
        desk.admin.update([update])
    assert desk.interrupted == []
    until(lambda: desk.admin.update([update]) == [True])
    row = desk.row()
    until(lambda: desk.interrupted == [(ShardId("t-1"), row.job_id, row.spec_json)])
    assert row.spec.trigger.job_type == "greedy"
    assert desk.admin.update([update]) == [True]
    # A retry requests it again: its first order may have been lost.
    until(lambda: desk.interrupted == [desk.interrupted[0]] * 2)


def test_unregister_answers_whether_there_was_such_a_job(desk: Desk) -> None:
    desk.admin.register([request()])
    assert not asked(desk, "unregister", JobName(TABLE.uri, "none"))
    assert not asked(desk, "unregister", JobName(OTHER.uri, "x"))
    assert [asked(desk, "unregister", X), asked(desk, "unregister", X)] == [True, False]
    (again,) = desk.admin.register([request()])
    assert again.created


@pytest.mark.parametrize("others", [0, 1])
def test_an_unregistration_whose_answer_was_lost_gets_it_when_it_is_repeated(desk: Desk, others: int) -> None:
    desk.admin.register([request(), *([request("y")] * others)])
    assert asked(desk, "unregister", X, "r-1")
    assert asked(desk, "unregister", X, "r-1")
    assert not asked(desk, "unregister", X, "r-2")
    assert not asked(desk, "unregister", JobName(TABLE.uri, "another"), "r-1")
    assert desk.rows() == 2 + others


def test_a_table_is_found_by_path_by_any_spelling_of_it_and_by_id(desk: Desk) -> None:
    desk.running()
    for table in (TABLE.uri, TABLE.uri + "/", "tables/orders", "t-1"):
        assert desk.admin.status(JobName(table, "x")).table_id == "t-1"
        assert desk.admin.notify(table) == 1
    until(lambda: desk.notified == [(ShardId("t-1"), True)] * 4)
    with pytest.raises(TableNotFound):
        desk.admin.notify(OTHER.uri)


def test_accounts_do_not_see_each_others_jobs(desk: Desk) -> None:
    desk.admin.register([request(), replace(request(target="/targets/b"), job=JobName(TABLE.uri, "x", "b"))])
    assert desk.admin.status(X).account == "default"
    assert [view.account for view in desk.admin.list_jobs(JobFilter(account="b"))] == ["b"]
    # Whether others have jobs on a table cannot be learnt: it is as a table on which nobody has any.
    calls: list[Callable[[], object]] = [
        lambda: desk.admin.status(JobName(TABLE.uri, "x", "c")),
        lambda: desk.admin.notify(TABLE.uri, "c"),
        lambda: desk.admin.list_jobs(JobFilter(account="c", table=TABLE.uri)),
        lambda: desk.admin.count_jobs(JobFilter(account="c", table=TABLE.uri)),
    ]
    for call in calls:
        with pytest.raises(TableNotFound, match="has no jobs"):
            call()
    assert desk.admin.notify(TABLE.uri, "b") == 1
    assert desk.admin.notify(TABLE.uri) == 2
    assert not desk.admin.change([JobChange(ChangeVerb.UNREGISTER, JobName(TABLE.uri, "x", "c"))])[0]


def test_a_target_that_holds_more_than_its_source_is_rebuilt_by_a_resync_alone(desk: Desk) -> None:
    desk.kind.archives = {"/targets/x", "/targets/z"}
    (checked,) = desk.admin.check([request()])
    assert "holds rows already" in str(checked.error)
    with pytest.raises(InvalidRequest, match="holds rows already"):
        desk.admin.register([request()])
    assert not desk.world.storage.entries
    desk.kind.archives = set()
    desk.admin.register([request()])
    desk.kind.archives = {"/targets/x"}
    assert not desk.admin.register([request()])[0].created
    assert desk.admin.check([request()])[0].error is None
    assert desk.admin.resync(ResyncRequest(X)).created


def test_a_target_that_holds_more_than_its_source_is_registered_if_a_run_has_kept_it_as_the_job_wants_it(
    desk: Desk,
) -> None:
    desk.kind.archives = {"/targets/x"}
    mark = spec_mark(TABLE.uri, parse_spec(spec()).consumer)
    target = TableDescription("t-9", "x", "/targets/x", 3, 1.0, sink_seq=4, empty=False)
    others = "", marked_job_id("000000000001", mark), marked_job_id("000000000001", "0123456789abcdef", run=True)
    for kept_by in others:
        desk.catalog.tables[target.uri] = replace(target, sink_job_id=kept_by)
        assert "holds rows already" in str(desk.admin.check([request()])[0].error)
        with pytest.raises(InvalidRequest, match="holds rows already"):
            desk.admin.register([request()])
    desk.catalog.tables[target.uri] = replace(target, sink_job_id=marked_job_id("000000000001", mark, run=True))
    assert desk.admin.check([request()])[0].error is None
    assert desk.admin.register([request()])[0].created


class DeletingKind(FakeKind):
    def delete_target(self, order: DeletionOrder, environment: ConsumerEnvironment) -> Deleted:
        raise AssertionError("the owner deletes nothing itself")


@pytest.fixture
def deleting(desk: Desk) -> Desk:
    desk.kind = DeletingKind()
    return desk


def done(desk: Desk, row: JobRow) -> None:
    status = JobStatus(deletion=Deletion.DONE, warning="left there: notes.txt")
    desk.world.report(row._replace(seq=row.seq + 1), 7, JobState.COMPLETED, Reason.PAUSED, status)


def test_the_job_is_dropped_once_a_node_has_deleted_its_target(deleting: Desk) -> None:
    row = deleting.running()
    assert asked(deleting, "delete_target", X, "r-1")
    view = deleting.admin.status(X)
    assert (view.reason, view.status.deletion) == (Reason.PAUSED, Deletion.WANTED)
    done(deleting, row)
    until(lambda: deleting.row().drop_at_s is not None)
    with pytest.raises(TableNotFound):
        deleting.admin.status(X)
    assert [asked(deleting, "delete_target", X, each) for each in ("r-1", "r-2")] == [True, False]
    assert deleting.admin.register([request()])[0].created


def test_a_job_that_cannot_be_dropped_yet_is_dropped_when_the_log_can_be_written_again(deleting: Desk) -> None:
    row = deleting.running()
    assert asked(deleting, "delete_target", X)
    deleting.world.logs[-1].faults += [StorageError("the disk is away"), StorageError("the disk is away")]
    done(deleting, row)

    def dropped() -> bool:
        deleting.world.clock.advance(60.0)  # the next attempt is due
        return deleting.row().drop_at_s is not None

    until(dropped)
    assert deleting.world.logs[-1].faults == []


def test_why_a_target_is_not_deleted_is_in_the_jobs_status(deleting: Desk) -> None:
    row = deleting.running()
    asked(deleting, "delete_target", X)
    status = JobStatus(error_code=ErrorCode.TARGET_UNUSABLE, error_msg="it is another's")
    deleting.world.report(row, 7, JobState.ERROR, Reason.PAUSED, status)
    until(lambda: deleting.admin.status(X).state is JobState.ERROR)
    view = deleting.admin.status(X)
    assert (view.status.error_msg, view.status.deletion) == ("it is another's", Deletion.WANTED)
    assert asked(deleting, "unregister", X)


def test_a_kind_that_deletes_no_targets_refuses_it_and_the_job_stays(desk: Desk) -> None:
    desk.running()
    with pytest.raises(InvalidRequest, match="which nodes cannot") as refused:
        asked(desk, "delete_target", X)
    assert (refused.value.field, bool(refused.value.remedy)) == ("delete_target", True)
    assert desk.admin.status(X).reason is Reason.NONE


def test_its_target_is_taken_until_it_is_gone(deleting: Desk) -> None:
    deleting.running()
    asked(deleting, "delete_target", X)
    with pytest.raises(InvalidRequest, match="/targets/x is being deleted, with job 'x'"):
        deleting.admin.register([request("y", target="/targets/x")])
    with pytest.raises(InvalidRequest, match="'x' is being deleted with its target /targets/x"):
        deleting.admin.register([request("x")])
    (checked,) = deleting.admin.check([request("y", target="/targets/x")])
    assert checked.error is not None
    (outcome,) = deleting.admin.change([JobChange(ChangeVerb.RESUME, X)])
    assert isinstance(outcome, InvalidRequest)


def test_what_it_holds_is_released_when_it_ends(deleting: Desk) -> None:
    class HoldingKind(DeletingKind):
        def held(self, spec: object) -> dict[str, float]:
            return {TABLE.uri: 60.0}

    deleting.kind = HoldingKind()
    deleting.running()
    assert asked(deleting, "delete_target", X)
    assert [uri for uri, _ in deleting.holds.released] == [TABLE.uri]


SHARD = ShardId("t-1")


class SeveralKind(FakeKind):
    def tables(self, spec: ConsumerSpec, catalog: Catalog) -> Mapping[str, str]:
        return {name: catalog.normalize(uri) for name, uri in spec.options["tables"].items()}


def running(desk: Desk) -> JobRow:
    """A job on a table at version 7 that reads another, which is at version 3."""
    consumed = spec(options={"tables": {"orders": TABLE.uri, "items": OTHER.uri}})
    desk.admin.register([RegisterRequest(X, consumed)])
    until(desk.world.runs)
    return desk.row()


def status(own: int, other: int) -> JobStatus:
    read = {TABLE.uri: own, OTHER.uri: other}
    return JobStatus(sources={uri: SourceMark("id", Watermark(version, 1.0)) for uri, version in read.items()})


def test_a_wait_goes_on_while_another_table_is_ahead(desk: Desk) -> None:
    row = running(desk)
    waiter = Waiter(desk, None)
    assert waiter.waits()
    desk.world.report(row, 7, JobState.COMPLETED, Reason.NONE, status(7, 2))
    until(lambda: desk.admin.status(X).applied_version == 7)
    assert waiter.waits()
    with pytest.raises(TimedOut, match=f"version 3 of {OTHER.uri}"):
        desk.admin.wait(X, 7, 0.0, lambda: True)
    desk.world.report(row._replace(seq=row.seq + 2), 7, JobState.COMPLETED, Reason.NONE, status(7, 3))
    assert waiter.answer.result(10.0).status.sources == status(7, 3).sources


def test_a_job_lags_by_the_tables_that_it_has_not_read_and_not_as_others_of_its_shard_do(desk: Desk) -> None:
    row = running(desk)
    desk.reach(row, 7, JobState.COMPLETED, Reason.NONE, status(7, 2))
    others = (
        FurtherSeen(OTHER.uri, 3, 40.0, ages=(VersionAge(2, 40.0),)),
        FurtherSeen("/lake/of-another-view", 9, 90.0),
    )
    desk.world.see(7, 90.0, further=others)
    assert 40.0 <= desk.admin.status(X).lag_s < 90.0
    desk.world.report(row._replace(seq=row.seq + 2), 7, JobState.COMPLETED, Reason.NONE, status(7, 3))
    until(lambda: desk.admin.status(X).lag_s == 0.0)


def test_whoever_reads_a_table_is_notified_of_it_as_well(desk: Desk) -> None:
    running(desk)
    assert desk.admin.notify(TABLE.uri) == 1
    assert desk.admin.notify(OTHER.uri) == 1
    # Several hints are on their way to a node at once: they arrive in any order.
    until(lambda: sorted(desk.notified) == [(SHARD, False), (SHARD, True)])
    asked(desk, "unregister", X)
    with pytest.raises(TableNotFound):
        desk.admin.notify(OTHER.uri)


def test_tables_are_kept_by_their_uris_with_the_jobs_own_among_them(desk: Desk) -> None:
    desk.kind = SeveralKind()
    named = {"orders": TABLE.uri + "/", "items": OTHER.uri.lstrip("/")}
    desk.admin.register([RegisterRequest(X, spec(options={"tables": named}))])
    assert desk.row().spec.consumer.options["tables"] == {"orders": TABLE.uri, "items": OTHER.uri}
    with pytest.raises(InvalidRequest, match=TABLE.uri):
        desk.admin.register([RegisterRequest(X, spec(options={"tables": {"items": OTHER.uri}}))])


def test_a_wait_names_tables_by_their_names_or_uris_and_takes_the_newest_of_the_others(desk: Desk) -> None:
    row = running(desk)
    desk.reach(row, 6, JobState.COMPLETED, Reason.NONE, status(6, 3))
    for versions in ({"orders": 6}, {TABLE.uri: 6, "items": 2}, {"orders": 5, OTHER.uri: 3}):
        assert desk.admin.wait(X, None, 0.0, lambda: True, versions).applied_version == 6
    assert desk.admin.wait(X, 6, 0.0, lambda: True, {"items": 0}).applied_version == 6
    for behind in ({"items": 3}, {"orders": 6, "items": 4}, {"orders": 7}):
        with pytest.raises(TimedOut):
            desk.admin.wait(X, None, 0.0, lambda: True, behind)
    for wrong in ({"elsewhere": 1}, {"items": -1}):
        with pytest.raises(InvalidRequest, match=r"elsewhere|-1"):
            desk.admin.wait(X, None, 0.0, lambda: True, wrong)
