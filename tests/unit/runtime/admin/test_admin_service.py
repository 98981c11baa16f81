"""What users are answered: requests checked before anything is written, waits that end, and how stale a job is."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from iscp.coordination.schedule.schedule_events import VerifyAnswered, VerifyAsked, VerifyWithdrawn
from iscp.core.api_requests import (
    ChangeVerb,
    JobChange,
    JobFilter,
    JobName,
    RegisterRequest,
    ResyncRequest,
    UpdateRequest,
)
from iscp.core.api_views import Action, JobView
from iscp.core.errors import (
    ErrorCode,
    InvalidRequest,
    JobFailed,
    JobNotFound,
    NotOwner,
    OutcomeUnknown,
    StorageError,
    TableNotFound,
    TargetLost,
    TimedOut,
    Unavailable,
)
from iscp.core.ids import ShardId
from iscp.core.iteration import HistoryEntry
from iscp.core.job_row import JobRow, JobState, JobStatus, Reason
from iscp.core.maintenance_figures import NO_UPKEEP, JobUpkeep, UpkeepFigures
from iscp.core.spec import TriggerSpec
from iscp.core.verification import Comparison, VerifyReport
from iscp.ports.catalog import TableDescription
from iscp.runtime.admin.admin_service import ALIVE_LOOK_S, OwnerAdmin
from iscp.runtime.admin.request_validation import JOB_NAME_LENGTH_MAX
from iscp.runtime.owner.job_progress import ProgressSignal
from iscp.runtime.owner.log_limits import LogLimits
from iscp.runtime.worker.verify_requests import VerifyDesk
from tests.fakes.nodes import FakeCalls, nodes_and_views
from tests.fakes.owner import OwnerWorld, until
from tests.fakes.pipeline import FakeCatalog, FakeKind
from tests.fakes.targets import FakeTargets

TABLE = TableDescription("t-1", "orders", "/tables/orders", 7, 1.0, {"id": "long"})
OTHER = TableDescription("t-2", "items", "/tables/items", 3, 1.0, {"id": "long"})


def spec(target: str = "/targets/x", **more: object) -> str:
    return json.dumps({"iteration": {"consumer": {"kind": "replica", "target": target, **more}}})


def request(name: str = "x", table: str = TABLE.uri, target: str = "", request_id: str = "") -> RegisterRequest:
    return RegisterRequest(JobName(table, name), spec(target or f"/targets/{name}"), request_id)


X = JobName(TABLE.uri, "x")


def asked(desk: Desk, verb: str, job: JobName, request_id: str = "") -> bool:
    """One change; raises what it was refused with."""
    (outcome,) = desk.admin.change([JobChange(ChangeVerb(verb), job, request_id)])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class Desk:
    """An OwnerAdmin over an owner in memory; `notified` are the shards whose node was told to look."""

    def __init__(self) -> None:
        self.catalog, self.kind, self.moved = FakeCatalog(TABLE, OTHER), FakeKind(), ProgressSignal()
        self.world = OwnerWorld(on_moved=self.moved.tell)
        self.asks: list[VerifyAsked | VerifyWithdrawn] = []
        self.verifying = VerifyDesk(self.asks.append, self.world.clock)
        self.calls = FakeCalls(self.verifying, {"waiting": 2, "running": 1, "completed": 5})
        self.targets = FakeTargets()
        self.notified, self.interrupted = self.calls.notified, self.calls.interrupted
        self.nodes, self.views = nodes_and_views(self.world.owner, self.world.membership, self.world.clock, self.calls)
        self.admin = OwnerAdmin(
            self.world.owner,
            self.catalog,
            self.find_kind,
            self.check_trigger,
            self.world.clock,
            self.moved,
            self.nodes,
            self.views.view,
            self.targets.fault,
        )

    def find_kind(self, name: str) -> FakeKind:
        if name != "replica":
            raise InvalidRequest(f"{name!r} is not a consumer", field="spec.iteration.consumer.kind")
        return self.kind

    def check_trigger(self, trigger: TriggerSpec) -> None:
        if trigger.name not in ("", "nightly"):
            raise InvalidRequest(f"{trigger.name!r} is not allowed", field="spec.trigger.name", remedy="Allow it")

    def row(self, name: str = "x", table_id: str = "t-1") -> JobRow:
        found = [
            row for row, _ in self.world.storage.entries if (row.key.job_name, row.key.table_id) == (name, table_id)
        ]
        return found[-1]

    def rows(self) -> int:
        return len(self.world.storage.entries)

    def running(self, name: str = "x") -> JobRow:
        """Registered, and run by the node."""
        self.admin.register([request(name)])
        until(self.world.runs)
        return self.row(name)

    def reach(self, row: JobRow, version: int, *told: object, **status: object) -> None:
        self.world.report(row, version, *told, **status)  # type: ignore[arg-type]
        until(lambda: self.admin.status(X).applied_version == version)


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    made.world.lead()
    yield made
    made.moved.close()
    made.world.close()


# --- registration ----------------------------------------------------------------------------------------------------


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
        (RegisterRequest(JobName(TABLE.uri, "x", " "), spec()), "job.account", ErrorCode.INVALID_REQUEST),
        (request(table="/tables/none"), "table", ErrorCode.TABLE_NOT_FOUND),
        (RegisterRequest(X, "not json"), "spec", ErrorCode.INVALID_REQUEST),
        (RegisterRequest(X, spec(bogus=1)), "spec.iteration.consumer.bogus", ErrorCode.INVALID_REQUEST),
        (RegisterRequest(X, '{"iteration":{"consumer":{"kind":"none"}}}'), "spec.iteration.consumer.kind", 10_000),
        (request(target="/refused"), "spec.iteration.consumer.target", ErrorCode.TARGET_UNUSABLE),
    ],
)
def test_all_or_none_are_registered_and_a_fault_is_told_by_its_field(
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
    other = OwnerAdmin(  # of another node: it remembers nothing
        desk.world.owner,
        desk.catalog,
        desk.find_kind,
        desk.check_trigger,
        desk.world.clock,
        desk.moved,
        desk.nodes,
        desk.views.view,
        desk.targets.fault,
    )
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


def test_between_terms_changes_are_refused_and_questions_answered(desk: Desk) -> None:
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
    assert desk.admin.status(X).name == "x"
    assert desk.admin.count_jobs(JobFilter()) == 1
    assert desk.admin.cluster().owner == ""


# --- other changes ---------------------------------------------------------------------------------------------------


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


def test_a_job_is_not_told_to_want_a_feed_that_is_off(desk: Desk) -> None:
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
    # A retry asks again: its first order may have been lost.
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
    with pytest.raises(JobNotFound):
        desk.admin.status(JobName(TABLE.uri, "x", "c"))


def test_a_target_that_holds_more_than_its_source_is_built_anew_by_a_resync_alone(desk: Desk) -> None:
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


# --- resync ----------------------------------------------------------------------------------------------------------


def test_a_resync_is_a_new_registration_in_the_log_which_the_node_is_told_of(desk: Desk) -> None:
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


# --- check -----------------------------------------------------------------------------------------------------------


def lines(desk: Desk, *requests: RegisterRequest) -> list[tuple[str, str, str]]:
    """(action, job that is there, fault) of each."""
    checked = desk.admin.check(requests)
    return [(str(each.action), each.job_id, each.error.field if each.error else "") for each in checked]


def test_a_check_tells_what_each_job_takes_and_writes_nothing(desk: Desk) -> None:
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
    desk.kind.refusals["/refused"] = InvalidRequest("no", field="spec.iteration.consumer.target")
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
    # One is built anew on the table that is there now; the others are still what they were.
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


# --- taking over a table ---------------------------------------------------------------------------------------------


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
        name, shared_target = "plain", False

    desk.kind = Plain()  # type: ignore[assignment]
    with pytest.raises(InvalidRequest, match="takes over no table"):
        desk.admin.register([adopting(7)])


# --- questions -------------------------------------------------------------------------------------------------------


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


def lag(desk: Desk) -> float:
    return desk.admin.status(X).lag_s


def test_lag_is_not_known_before_somebody_has_looked_and_nothing_when_up_to_date(desk: Desk) -> None:
    row = desk.running()
    assert lag(desk) == -1.0
    desk.reach(row, 7)
    desk.world.see(7)
    desk.world.clock.advance(50.0)
    view = desk.admin.status(X)
    assert (view.lag_s, view.source_version, view.applied_version, view.node_id) == (0.0, 7, 7, "n-1")
    assert view.checked_at_s == desk.world.clock.now_s() - 50.0


def test_lag_grows_with_the_time_since_the_look_but_never_beyond_the_jobs_own_watermark(desk: Desk) -> None:
    row = desk.running()
    desk.world.see(9, lag_s=30.0)
    desk.world.clock.advance(5.0)
    assert lag(desk) == 35.0  # nothing applied yet: the table's oldest outstanding commit
    desk.reach(row, 7)
    desk.world.clock.advance(2.0)
    assert lag(desk) == 2.0  # the slowest of the table is another job
    assert desk.admin.status(X).source_version == 9
    desk.world.clock.step(-100.0)
    assert lag(desk) == 0.0  # never negative


def test_a_job_past_its_target_lag_is_late_and_so_is_one_that_takes_longer_to_build(desk: Desk) -> None:
    row = desk.running()
    desk.admin.update([UpdateRequest(X, '{"target_lag":30}')])
    assert not desk.admin.status(X).late
    desk.world.clock.advance(31.0)
    assert desk.admin.status(X).late, "nothing is built yet"
    desk.reach(row, 7)
    desk.world.see(9, lag_s=1.0)
    assert not desk.admin.status(X).late
    desk.world.clock.advance(31.0)
    assert desk.admin.status(X).late
    desk.admin.update([UpdateRequest(X, '{"target_lag":60}')])
    assert not desk.admin.status(X).late


def test_lag_counts_the_time_in_which_nobody_looks(desk: Desk) -> None:
    row = desk.running()
    desk.reach(row, 7)
    desk.world.see(7)
    desk.world.owner.on_lost()
    until(lambda: desk.world.owner.writer is None)
    desk.world.clock.advance(40.0)
    view = desk.admin.status(X)
    assert (view.lag_s, view.node_id) == (40.0, "")
    assert desk.admin.cluster().lag_max_s == 40.0


def test_the_cluster_as_the_owner_sees_it(desk: Desk) -> None:
    desk.running()
    desk.world.see(7, lag_s=4.0)
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


# --- waiting ---------------------------------------------------------------------------------------------------------


class Waiter:
    """A wait on a thread of its own."""

    def __init__(self, desk: Desk, version: int | None = 7, alive: Callable[[], bool] = lambda: True) -> None:
        self.answer: Future[JobView] = Future()
        self.looked = threading.Event()

        def still_there() -> bool:
            self.looked.set()
            return alive()

        def wait() -> None:
            try:
                self.answer.set_result(desk.admin.wait(X, version, 60.0, still_there))
            except Exception as error:  # noqa: BLE001
                self.answer.set_exception(error)

        threading.Thread(target=wait, daemon=True).start()

    def waits(self) -> bool:
        """It has looked once in vain, and sleeps or is about to."""
        return self.looked.wait(10.0) and not self.answer.done()


def test_a_wait_for_what_is_applied_returns_at_once(desk: Desk) -> None:
    row = desk.running()
    desk.reach(row, 7)
    for version in (None, 0, 7):
        assert desk.admin.wait(X, version, 0.0, lambda: True).applied_version == 7
    until(lambda: desk.notified == [(ShardId("t-1"), False)] * 3)  # the node is told to look now


def test_a_wait_does_not_answer_from_memory_while_the_target_is_gone(desk: Desk) -> None:
    """The job's node is told to look at its targets, and the wait goes on until they are right."""
    row = desk.running()
    desk.reach(row, 7)
    desk.targets.faults["x"] = TargetLost("the target /targets/x is not there")
    with pytest.raises(TimedOut, match="/targets/x is not there"):
        desk.admin.wait(X, 7, 0.0, lambda: True)
    until(lambda: (ShardId("t-1"), True) in desk.notified)
    desk.notified.clear()
    waiter = Waiter(desk, 7)
    assert waiter.waits()
    until(lambda: (ShardId("t-1"), True) in desk.notified)
    desk.world.report(row, 7, JobState.RUNNING, Reason.NONE, JobStatus(doubted_at_s=1.0))
    assert not waiter.answer.done()
    del desk.targets.faults["x"]
    desk.world.report(row._replace(seq=row.seq + 2), 7, JobState.COMPLETED, Reason.NONE, JobStatus())
    assert waiter.answer.result(10.0).applied_version == 7
    assert desk.notified.count((ShardId("t-1"), True)) == 1


def test_a_paused_job_whose_target_is_gone_is_not_fresh(desk: Desk) -> None:
    desk.reach(desk.running(), 7)
    asked(desk, "pause", X)
    desk.targets.faults["x"] = TargetLost("the target /targets/x is not there")
    with pytest.raises(JobFailed, match="is paused, and the target /targets/x is not there"):
        desk.admin.wait(X, 7, 0.0, lambda: True)


def test_a_target_in_doubt_lags_since_the_doubt(desk: Desk) -> None:
    row = desk.running()
    doubted_at_s = desk.world.clock.now_s() - 30.0
    desk.reach(row, 7, JobState.ERROR, Reason.RETRYING, JobStatus(doubted_at_s=doubted_at_s))
    desk.world.see(7)
    until(lambda: desk.admin.status(X).lag_s >= 30.0)


def test_a_wait_returns_when_the_version_is_applied_and_not_before(desk: Desk) -> None:
    row = desk.running()
    waiter = Waiter(desk, None)  # the table's newest: 7
    assert waiter.waits()
    desk.world.report(row, 6)
    until(lambda: desk.admin.status(X).applied_version == 6)
    assert waiter.waits()
    began_s = time.monotonic()
    desk.world.report(row, 8)
    assert waiter.answer.result(10.0).applied_version == 8
    assert time.monotonic() - began_s < ALIVE_LOOK_S  # woken, not found by looking


def test_a_wait_does_not_wait_for_the_log(desk: Desk) -> None:
    row = desk.running()
    desk.admin.register([request("y")])
    waiter = Waiter(desk)
    assert waiter.waits()
    log = desk.world.logs[-1]
    log.faults.append(OutcomeUnknown("the storage does not answer"))
    with ThreadPoolExecutor(1) as pool:
        pausing = pool.submit(asked, desk, "pause", JobName(TABLE.uri, "y"))
        until(lambda: not log.faults)
        began_s = time.monotonic()
        desk.world.report(row, 7)
        assert waiter.answer.result(10.0).applied_version == 7
        assert time.monotonic() - began_s < ALIVE_LOOK_S
        assert not pausing.done()
        desk.world.pass_s(LogLimits().retry_s)
        until(lambda: desk.world.pass_s(1.0) or pausing.done())


def test_a_wait_ends_when_its_time_is_up(desk: Desk) -> None:
    desk.reach(desk.running(), 5)
    with pytest.raises(TimedOut, match=r"version 7 was not applied within 0 s; the job is at 5"):
        desk.admin.wait(X, None, 0.0, lambda: True)
    waiter = Waiter(desk)
    assert waiter.waits()
    desk.world.clock.advance(60.0)
    with pytest.raises(TimedOut):
        waiter.answer.result(10.0)


def pause(desk: Desk, row: JobRow) -> None:
    asked(desk, "pause", X)


def drop(desk: Desk, row: JobRow) -> None:
    asked(desk, "unregister", X)


def fail(desk: Desk, row: JobRow) -> None:
    status = JobStatus(error_code=ErrorCode.DUPLICATE_KEY, error_msg="rows share a key")
    desk.world.report(row, 5, JobState.ERROR, Reason.NONE, status)


@pytest.mark.parametrize(("event", "why"), [(pause, "is paused"), (drop, "was dropped"), (fail, "rows share a key")])
def test_a_wait_that_cannot_end_well_fails(desk: Desk, event: Callable[[Desk, JobRow], None], why: str) -> None:
    row = desk.running()
    waiter = Waiter(desk)
    assert waiter.waits()
    event(desk, row)
    with pytest.raises(JobFailed, match=why):
        waiter.answer.result(10.0)


def test_a_job_that_fails_for_now_is_waited_for(desk: Desk) -> None:
    row = desk.running()
    waiter = Waiter(desk)
    assert waiter.waits()
    desk.world.report(row, 5, JobState.ERROR, Reason.RETRYING, JobStatus(error_code=ErrorCode.STORAGE))
    until(lambda: desk.admin.status(X).state is JobState.ERROR)
    assert not waiter.answer.done()
    desk.world.report(row, 7, JobState.COMPLETED, Reason.NONE, JobStatus())
    assert waiter.answer.result(10.0).applied_version == 7


def test_a_paused_job_that_has_come_far_enough_is_no_failure(desk: Desk) -> None:
    desk.reach(desk.running(), 7)
    asked(desk, "pause", X)
    assert desk.admin.wait(X, 7, 0.0, lambda: True).reason is Reason.PAUSED


def test_a_job_that_was_dropped_and_made_again_is_another_one(desk: Desk) -> None:
    desk.running()
    go_on = threading.Event()
    waiter = Waiter(desk, alive=lambda: go_on.wait(10.0))
    assert waiter.waits()
    asked(desk, "unregister", X)
    desk.admin.register([request()])
    go_on.set()  # it has not seen that there was none in between
    with pytest.raises(JobFailed, match="was dropped"):
        waiter.answer.result(10.0)


def test_a_wait_is_given_up_when_nobody_waits_any_more_or_the_node_stops(desk: Desk) -> None:
    desk.running()
    gone = Waiter(desk, alive=lambda: False)
    with pytest.raises(Unavailable):
        gone.answer.result(10.0)
    waiter = Waiter(desk)
    assert waiter.waits()
    desk.moved.close()
    with pytest.raises(Unavailable):
        waiter.answer.result(10.0)


def test_a_wait_outlasts_a_change_of_the_owner(desk: Desk) -> None:
    row = desk.running()
    waiter = Waiter(desk)
    assert waiter.waits()
    desk.world.etcd.depose()
    until(lambda: desk.admin.cluster().owner_rev == 2)
    assert waiter.waits()
    desk.world.pass_s(1.0)
    until(desk.world.runs)
    desk.reach(row, 7)
    assert waiter.answer.result(10.0).applied_version == 7


def test_waiting_for_what_does_not_exist_is_refused(desk: Desk) -> None:
    desk.admin.register([request()])
    with pytest.raises(JobNotFound):
        desk.admin.wait(JobName(TABLE.uri, "none"), 1, 0.0, lambda: True)
    with pytest.raises(TableNotFound):
        desk.admin.wait(JobName("/tables/none", "x"), 1, 0.0, lambda: True)


def test_moves_that_came_before_the_wait_are_not_missed() -> None:
    moved = ProgressSignal()
    since = moved.count()
    moved.tell()
    began_s = time.monotonic()
    moved.wait(since, 30.0)
    assert time.monotonic() - began_s < 10.0


def test_whoever_waits_is_woken() -> None:
    moved = ProgressSignal()
    waiting = threading.Thread(target=moved.wait, args=(moved.count(), 30.0))
    waiting.start()
    time.sleep(0.05)
    assert waiting.is_alive()
    moved.tell()
    waiting.join(10.0)
    assert not waiting.is_alive()


# --- comparisons -------------------------------------------------------------------------------------------------


def test_a_comparison_is_asked_of_the_tables_node_and_its_answer_comes_back(desk: Desk) -> None:
    desk.reach(desk.running(), 7)
    report = VerifyReport(7, 3, Comparison())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(desk.admin.verify, X, True, 30.0, lambda: True)
        until(lambda: desk.asks)
        (asked,) = desk.asks
        assert isinstance(asked, VerifyAsked)
        assert (asked.ask.shard, asked.ask.job_id, asked.ask.repair) == (ShardId("t-1"), desk.row().job_id, True)
        desk.verifying.answer(VerifyAnswered(asked.ask.ask_id, report))
        assert waiting.result(10.0) == report


def test_what_cannot_be_compared_is_refused_before_anything_is_asked(desk: Desk) -> None:
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
    row, figures = desk.running(), UpkeepFigures(submitted=2, failed=1, error_code=3, error_msg="too long")
    desk.calls.upkeeps[row.job_id] = JobUpkeep(refresh=figures)
    assert desk.admin.status(X).upkeep == NO_UPKEEP, "a node is not asked in vain"
    desk.kind = Refreshing()
    assert desk.admin.status(X).upkeep == JobUpkeep(refresh=figures)
    assert [job.upkeep for job in desk.admin.list_jobs(JobFilter())] == [NO_UPKEEP]
    desk.calls.upkeeps[row.job_id] = Unavailable("away")
    assert desk.admin.status(X).upkeep == NO_UPKEEP


def test_a_spec_that_was_damaged_in_the_log_hides_no_job(desk: Desk) -> None:
    row = desk.running()
    writer = desk.world.owner.current_writer()
    writer.read(lambda book: book._jobs.update({row.key: row._replace(spec_json='{"target_lag":')}))
    assert [job.late for job in desk.admin.list_jobs(JobFilter())] == [False]
    assert desk.admin.status(X).upkeep == NO_UPKEEP
