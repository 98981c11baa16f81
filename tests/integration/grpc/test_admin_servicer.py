"""Client and server over real sockets, with the service faked: typed answers, errors, retries and bounds."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import iscp
from iscp.client.admin_client import Client
from iscp.model.api.api_requests import (
    Action,
    ChangeVerb,
    JobChange,
    JobName,
    LeftOutRow,
    LeftOutRows,
    RegisterRequest,
    UpdateRequest,
)
from iscp.model.job.job_row import JobState, Reason
from iscp.model.job.start_rule import Comparison, Sample
from iscp.model.settings.config import WaitBounds
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.spec.spec_parsing import parse_spec
from iscp.model.values import errors as core
from iscp.server.access.admin_servicer import DEAD_LETTERS_LIMIT, DEAD_LETTERS_MAX, HISTORY_LIMIT_MAX
from iscp.server.admin.admin_server import AdminServer, OperatorServer
from iscp.system.tls.tls_files import CHANGES_MAX, REGISTRATIONS_MAX, SPEC_BYTES_MAX, Tls
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import admin_pb2_grpc as pb_grpc
from tests.fakes.admin import MISSING, FakeAdmin
from tests.fakes.certificates import certified
from tests.fakes.operators import FakeOperator
from tests.fakes.waiting import until
from tests.selection import in_full

SPEC = JobSpec(ConsumerSpec("replica", "/copy")).to_json()
WAITS_MAX = 3
KINDS = [kind for kind in vars(core).values() if isinstance(kind, type) and issubclass(kind, core.IscpError)]


@pytest.fixture
def service() -> FakeAdmin:
    return FakeAdmin()


@pytest.fixture
def server(service: FakeAdmin) -> Iterator[AdminServer]:
    server = AdminServer(service, "127.0.0.1:0", max_workers=4, waits=WaitBounds(node_max=WAITS_MAX))
    server.start()
    server.ready()
    yield server
    server.stop(grace_s=0)


@pytest.fixture
def client(server: AdminServer) -> Iterator[Client]:
    with Client(server.address, timeout_s=20) as client:
        yield client


def test_a_job_is_registered_once_and_shown_as_it_is(client: Client) -> None:
    first = client.register(
        "/t", "a", target="/copy", key=["id"], columns=["id", "x"], where="x > 1", priority=3, account="acme"
    )
    again = client.register("/t", "a", target="/other", account="acme")
    assert (first.created, again.created) == (True, False)
    assert again.job_id == first.job_id
    job = client.status("/t", "a", account="acme")
    assert (job.account, job.table, job.name, job.job_id) == ("acme", "/t", "a", first.job_id)
    assert parse_spec(job.spec_json) == JobSpec(
        ConsumerSpec("replica", "/copy", ("id",), ("id", "x"), "x > 1"), priority=3
    )


def test_one_faulty_job_of_many_leaves_none(client: Client, service: FakeAdmin) -> None:
    requests = [RegisterRequest(JobName(table, "a"), SPEC) for table in ("/t", MISSING)]
    with pytest.raises(core.TableNotFound) as caught:
        client.register_many(requests)
    assert caught.value.field == "requests[1].table"
    assert "_delta_log" in caught.value.remedy
    assert client.count() == 0


def test_a_check_reports_of_each_what_it_takes_or_why_not(client: Client) -> None:
    first = client.register("/t", "a", target="/copy")
    requests = [
        RegisterRequest(JobName(table, name), SPEC) for table, name in (("/t", "a"), ("/t", "b"), (MISSING, "a"))
    ]
    there, new, missing = client.check_many(requests)
    assert (there.action, there.job_id, there.there_id, there.there_json) == (
        Action.UNCHANGED,
        first.job_id,
        "id-of-/t",
        there.spec_json,
    )
    assert (new.action, new.job_id, new.error) == (Action.CREATE, "", None)
    assert isinstance(missing.error, core.TableNotFound)
    assert client.count() == 1


def test_pause_resume_and_unregister_say_whether_they_changed_anything(client: Client) -> None:
    client.register("/t", "a", target="/copy")
    assert [client.pause("/t", "a"), client.pause("/t", "a")] == [True, False]
    assert client.status("/t", "a").reason is Reason.PAUSED
    assert [client.resume("/t", "a"), client.resume("/t", "a")] == [True, False]
    assert [client.unregister("/t", "a"), client.unregister("/t", "a")] == [True, False]
    with pytest.raises(core.JobNotFound):
        client.status("/t", "a")


def test_an_update_changes_what_is_given(client: Client, service: FakeAdmin) -> None:
    client.register("/t", "a", target="/copy", priority=3)
    assert client.update("/t", "a", trigger="periodic", every=60.0, target_lag=90.0, interrupt=True)
    assert not client.update("/t", "a", every=60.0)
    spec = parse_spec(client.status("/t", "a").spec_json)
    assert (spec.trigger.interval_s, spec.target_lag_s, spec.priority) == (60.0, 90.0, 3)
    assert client.update("/t", "a", {"target_lag": None})
    assert parse_spec(client.status("/t", "a").spec_json).target_lag_s is None
    assert service.interrupted == [JobName("/t", "a")]
    with pytest.raises(core.InvalidRequest) as refused:
        client.update("/t", "a", every=0)
    assert refused.value.field == "spec.trigger.schedule.interval"
    with pytest.raises(core.JobNotFound):
        client.update("/t", "none", priority=1)
    long = UpdateRequest(JobName("/t", "a"), json.dumps({"x": "y" * SPEC_BYTES_MAX}))
    with pytest.raises(core.InvalidRequest, match="characters"):
        client.update_many([long])


def test_many_changes_are_answered_each_for_itself(client: Client, service: FakeAdmin) -> None:
    client.register("/t", "a", target="/copy")
    jobs = [JobName("/t", "a"), JobName("/t", "none"), JobName("/t", "a")]
    done, unknown, again = client.change_many([JobChange(ChangeVerb.PAUSE, job) for job in jobs])
    assert (done, again) == (True, False)
    assert isinstance(unknown, core.JobNotFound)
    assert "job list" in unknown.remedy
    assert len(set(service.request_ids)) == 4
    assert client.change_many([]) == []


def test_a_resync_takes_another_table_and_spec_and_is_made_once(client: Client, service: FakeAdmin) -> None:
    first = client.register("/t", "a", target="/copy")
    service.failures, service.fail_late = [core.OutcomeUnknown("the answer was lost")], True
    again = client.resync(
        "/t", "a", new_table="/u", spec={"iteration": {"consumer": {"kind": "replica", "target": "/x"}}}
    )
    assert (again.job_id, again.table_id) == ("job-2", "id-of-/u")
    assert again.job_id != first.job_id
    job = client.status("/u", "a")
    assert (job.job_id, parse_spec(job.spec_json).consumer.target, job.applied_version) == (again.job_id, "/x", -1)
    assert client.change_many([JobChange(ChangeVerb.RESYNC, JobName("/u", "a"))]) == [True]
    with pytest.raises(core.JobNotFound):
        client.resync("/t", "a")
    with pytest.raises(core.InvalidRequest, match="spec_json has"):
        client.resync("/u", "a", spec="x" * (SPEC_BYTES_MAX + 1))


def test_too_many_changes_and_verbs_of_another_version_are_refused(server: AdminServer, client: Client) -> None:
    change = JobChange(ChangeVerb.RESUME, JobName("/t", "a"))
    with pytest.raises(core.InvalidRequest, match=f"changes: .* more than the {CHANGES_MAX}"):
        client.change_many([change] * (CHANGES_MAX + 1))
    request = pb.ChangeJobsRequest(format_version=1, changes=[pb.JobChange(verb=99, job=pb.JobName(name="a"))])  # type: ignore[arg-type]
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as caught:
        pb_grpc.AdminStub(channel).ChangeJobs(request)
    assert "changes[0].verb" in str(caught.value)


def test_jobs_are_filtered_limited_and_counted(client: Client) -> None:
    for table, name in (("/t", "a"), ("/t", "b"), ("/u", "a")):
        client.register(table, name, target=f"/copy{name}")
    client.pause("/t", "b")
    assert [(job.table, job.name) for job in client.jobs(table="/t")] == [("/t", "a"), ("/t", "b")]
    assert [job.name for job in client.jobs(reason="paused")] == ["b"]
    assert client.jobs(state=JobState.ERROR) == []
    assert [job.table for job in client.jobs(table_pattern="/[tv]", name_pattern="a")] == ["/t"]
    assert client.count(table_pattern="/*", name_pattern="a*") == 2
    assert len(client.jobs(limit=2)) == 2
    assert (client.count(), client.count(state="completed", table="/u"), client.notify("/t")) == (3, 1, 2)
    with pytest.raises(core.InvalidRequest, match=r"state: 'fine' is not known\. Use pending"):
        client.jobs(state="fine")


@pytest.mark.parametrize("count", in_full([20_000, 100_000]))
def test_very_many_jobs_pass(client: Client, count: int) -> None:
    for start in range(0, count, REGISTRATIONS_MAX):
        numbers = range(start, start + REGISTRATIONS_MAX)
        client.register_many([RegisterRequest(JobName(f"/t/{number}", "a"), SPEC) for number in numbers])
    assert client.count() == count
    assert len({job.table for job in client.jobs(limit=200_000)}) == count
    assert len(client.cluster().shards) == count


def test_history_is_newest_first_and_limited(client: Client, service: FakeAdmin) -> None:
    client.register("/t", "a", target="/copy")
    for version in range(5):
        service.apply("/t", "a", version)
    assert [entry.to_version for entry in client.history("/t", "a", limit=3)] == [4, 3, 2]
    with pytest.raises(core.InvalidRequest, match="limit"):
        client.history("/t", "a", limit=HISTORY_LIMIT_MAX + 1)


def test_rows_left_out_arrive_as_they_are_and_few(client: Client, service: FakeAdmin) -> None:
    client.register("/t", "a", target="/copy")
    columns = {"id": 1, "none": None, "nested": {"a": [1, "ü"]}, "half": "\ud800", "big": 2**70}
    service.left_out = LeftOutRows(tuple(LeftOutRow(columns, f"why {n}") for n in range(50)), "/copy_dead_letter")
    assert client.dead_letters("/t", "a", limit=50) == service.left_out
    assert len(client.dead_letters("/t", "a").rows) == DEAD_LETTERS_LIMIT
    with pytest.raises(core.InvalidRequest, match="limit"):
        client.dead_letters("/t", "a", limit=DEAD_LETTERS_MAX + 1)
    with pytest.raises(core.JobNotFound):
        client.dead_letters("/t", "nobody")


def test_the_cluster_is_reported_whole(client: Client, service: FakeAdmin) -> None:
    client.register("/t", "a", target="/copy")
    assert client.cluster() == service.cluster()


def test_wait_returns_when_the_version_is_applied(client: Client, service: FakeAdmin) -> None:
    client.register("/t", "a", target="/copy")
    with ThreadPoolExecutor() as pool:
        newest = pool.submit(client.wait, "/t", "a")
        service.apply("/t", "a", 3)
        assert client.wait("/t", "a", 3).applied_version == 3
        assert not newest.done()
        service.apply("/t", "a", service.source_version)
        assert newest.result(10).applied_version == service.source_version


def test_wait_ends_when_its_time_is_over(client: Client) -> None:
    client.register("/t", "a", target="/copy")
    begun_s = time.monotonic()
    with pytest.raises(core.TimedOut, match="not applied yet"):
        client.wait("/t", "a", timeout_s=0.2)
    assert time.monotonic() - begun_s < 4


@pytest.mark.parametrize("timeout_s", [-1.0, 1e9])
def test_wait_refuses_times_without_sense(client: Client, timeout_s: float) -> None:
    client.register("/t", "a", target="/copy")
    with pytest.raises(core.IscpError):
        client.wait("/t", "a", timeout_s=timeout_s)


def test_waits_are_bounded_and_leave_the_other_calls_their_threads(client: Client, service: FakeAdmin) -> None:
    client.register("/t", "a", target="/copy")
    with ThreadPoolExecutor(WAITS_MAX) as pool:
        waits = [pool.submit(client.wait, "/t", "a") for _ in range(WAITS_MAX)]
        until(lambda: service.asked.get("wait") == WAITS_MAX)
        with pytest.raises(core.QueueFull, match="Wait for fewer things"):
            client.wait("/t", "a")
        assert client.count() == 1
        service.apply("/t", "a", service.source_version)
        assert {wait.result(10).applied_version for wait in waits} == {service.source_version}
    assert client.wait("/t", "a").applied_version == service.source_version


def test_a_comparison_comes_back_as_it_was_found(client: Client, service: FakeAdmin) -> None:
    client.register("/t", "a", target="/copy")
    samples = (Sample("different", '{"id":null}', ("v", "w")), Sample("extra", "{}"))
    service.comparisons["a"] = Comparison(10, 11, 4, 1, 2, 3, 1, shared=5, samples=samples)
    report = client.verify("/t", "a", repair=True)
    assert (report.comparison, report.repaired) == (service.comparisons["a"], True)
    with pytest.raises(core.JobNotFound):
        client.verify("/t", "b")
    with pytest.raises(core.InvalidRequest, match="must be 0 to"):
        client.verify("/t", "a", timeout_s=1e9)


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_comes_back_as_what_it_was(
    server: AdminServer, service: FakeAdmin, kind: type[core.IscpError]
) -> None:
    error = kind("what ü", field="spec.x", remedy="do that")
    service.failures = [error] * 100
    with Client(server.address, timeout_s=0.5) as client, pytest.raises(core.IscpError) as caught:
        client.count()
    back = caught.value
    assert type(back) is kind
    assert (back.message, back.field, back.remedy, back.code) == ("what ü", "spec.x", "do that", error.code)


def test_an_error_of_any_length_arrives(client: Client, service: FakeAdmin) -> None:
    service.failures = [core.InvalidRequest("汉" * 100_000, about="f" * 9_000, remedy="ü" * 9_000)]
    with pytest.raises(core.InvalidRequest, match="汉汉"):
        client.count()


def test_what_nobody_foresaw_is_logged_and_answered(
    client: Client, service: FakeAdmin, caplog: pytest.LogCaptureFixture
) -> None:
    for call in (client.count, client.jobs):
        service.failures = [ZeroDivisionError("odd")]
        with pytest.raises(core.IscpError, match="unforeseen ZeroDivisionError: odd") as caught:
            call()
        assert caught.value.code is core.ErrorCode.INTERNAL
    assert [record.verb for record in caplog.records if record.message == "admin.failed"] == ["count", "list"]  # type: ignore[attr-defined]


def test_a_change_is_retried_under_its_request_id_and_done_once(client: Client, service: FakeAdmin) -> None:
    service.fail_late = True
    service.failures = [core.Unavailable("the answer is lost"), core.NotOwner("somebody else is")]
    assert client.register("/t", "a", target="/copy").created
    assert len(service.request_ids) == 3
    assert len(set(service.request_ids)) == 1
    service.failures = [core.OutcomeUnknown("perhaps")]
    assert client.unregister("/t", "a")
    assert service.request_ids[-1] == service.request_ids[-2]
    assert len(set(service.request_ids)) == 2


def test_retries_end(server: AdminServer, service: FakeAdmin) -> None:
    service.failures = [core.Unavailable("away")] * 100
    with Client(server.address, timeout_s=0.5) as client, pytest.raises(core.Unavailable, match="away"):
        client.count()
    assert service.asked["count"] > 1


def test_what_is_refused_is_not_retried(client: Client, service: FakeAdmin) -> None:
    with pytest.raises(core.InvalidRequest, match=r"spec\.iteration\.consumer\.target"):
        client.register("/t", "a")
    assert service.asked == {"register": 1}


def test_a_node_that_is_away_is_unavailable_and_nothing_was_done() -> None:
    with Client("127.0.0.1:1", timeout_s=0.5) as client:
        with pytest.raises(core.Unavailable, match="ISCP_ENDPOINT"):
            client.count()
        with pytest.raises(core.Unavailable):
            client.unregister("/t", "a")


def test_a_client_finds_a_node_that_comes_back(service: FakeAdmin) -> None:
    first = AdminServer(service, "127.0.0.1:0")
    first.start()
    with Client(first.address) as client:
        assert client.count() == 0
        first.stop(grace_s=0)
        later = threading.Timer(0.5, (second := AdminServer(service, first.address)).start)
        later.start()
        assert client.count() == 0
    later.join()
    second.stop(grace_s=0)


def test_a_change_that_got_no_answer_in_time_has_an_unknown_outcome(server: AdminServer, service: FakeAdmin) -> None:
    release = threading.Event()
    service.before = lambda verb: release.wait(10)
    with Client(server.address, timeout_s=0.3) as client:
        with pytest.raises(core.OutcomeUnknown) as caught:
            client.unregister("/t", "a")
        assert caught.value.code is core.ErrorCode.TIMEOUT
        with pytest.raises(core.TimedOut):
            client.count()
    release.set()


def test_too_many_jobs_at_once_are_refused_with_a_remedy(client: Client) -> None:
    request = RegisterRequest(JobName("/t", "a"), SPEC)
    with pytest.raises(core.InvalidRequest, match="several calls"):
        client.register_many([request] * (REGISTRATIONS_MAX + 1))
    with pytest.raises(core.InvalidRequest, match=r"fewer at a time|several calls"):
        client.register_many([RegisterRequest(JobName("/t", "a" * 4_000), SPEC)] * 10_000)
    with pytest.raises(core.InvalidRequest, match=r"registrations\[0\]\.spec_json"):
        client.register_many([RegisterRequest(JobName("/t", "a"), SPEC + " " * 300_000)])


def test_a_format_of_the_future_is_refused_and_none_is_the_first(server: AdminServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        admin = pb_grpc.AdminStub(channel)
        assert admin.CountJobs(pb.CountJobsRequest()).jobs == 0
        with pytest.raises(grpc.RpcError) as caught:
            admin.CountJobs(pb.CountJobsRequest(format_version=2))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_health_and_reflection_are_on(server: AdminServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "iscp.wire.v1.Admin"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        (answer,) = reflection.ServerReflectionInfo(asked)
        assert "iscp.wire.v1.Admin" in {one.name for one in answer.list_services_response.service}


def test_reflection_names_what_operators_call(service: FakeAdmin) -> None:
    server = AdminServer(service, "127.0.0.1:0", services=[OperatorServer(FakeOperator())])
    server.start()
    with grpc.insecure_channel(server.address) as channel:
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    server.stop(grace_s=0)
    assert "iscp.wire.v1.Operator" in {one.name for one in answer.list_services_response.service}


def test_a_port_is_not_shared(server: AdminServer) -> None:
    with pytest.raises(core.ConfigurationError, match="Is the port taken"):
        AdminServer(FakeAdmin(), server.address).start()


def test_stop_lets_running_calls_end(service: FakeAdmin) -> None:
    server = AdminServer(service, "127.0.0.1:0")
    server.start()
    begun, release = threading.Event(), threading.Event()

    def before(verb: str) -> None:
        begun.set()
        release.wait(10)

    service.before = before
    with iscp.Client(server.address) as client, ThreadPoolExecutor() as pool:
        running = pool.submit(client.count)
        assert begun.wait(10)
        stopping = pool.submit(server.stop, 10)
        release.set()
        stopping.result(15)
        assert running.result(10) == 0


def test_tls_on_both_sides(service: FakeAdmin, tls: tuple[Tls, Tls]) -> None:
    server_tls, client_tls = tls
    server = AdminServer(service, "localhost:0", tls=server_tls)
    server.start()
    with Client(server.address, tls=client_tls) as client:
        assert client.count() == 0
    stranger = Tls(authority=client_tls.authority)
    with Client(server.address, timeout_s=2, tls=stranger) as client, pytest.raises(core.Unavailable):
        client.count()
    server.stop(grace_s=0)


@pytest.fixture(scope="module")
def tls() -> tuple[Tls, Tls]:
    both = certified()
    return both, both
