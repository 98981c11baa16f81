"""A desk at which users are answered: the owner's service over an owner in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future

from iscp.cluster.owner.checkpoint_saver import ProgressSignal
from iscp.cluster.requests.job_maker import JobMaker
from iscp.cluster.requests.request_validator import RequestValidator
from iscp.cluster.worker_loop import VerifyDesk
from iscp.engine.account_turns import ANYWHERE, PlaceGuard
from iscp.model.api.api_requests import ChangeVerb, JobChange, JobName, JobView, RegisterRequest
from iscp.model.job.job_row import JobRow, JobState, JobStatus, Reason
from iscp.model.spec.spec import TriggerSpec
from iscp.model.values.errors import ErrorCode, InvalidRequest
from iscp.ports.source import TableDescription
from iscp.schedule.schedule_events import VerifyRequested, VerifyWithdrawn
from iscp.server.admin.admin_service import OwnerAdmin
from tests.fakes.catalog import FakeCatalog
from tests.fakes.holds import FakeHolds
from tests.fakes.nodes import FakeCalls, nodes_and_views
from tests.fakes.owner import OwnerWorld
from tests.fakes.owner_admin import owner_admin
from tests.fakes.pipeline import FakeKind
from tests.fakes.targets import FakeTargets
from tests.fakes.waiting import until

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
    """An OwnerAdmin over an owner in memory; `notified` are the shards whose node was notified to probe."""

    def __init__(self, places: PlaceGuard = ANYWHERE) -> None:
        self.catalog, self.kind, self.moved = FakeCatalog(TABLE, OTHER), FakeKind(), ProgressSignal()
        self.world = OwnerWorld(on_progress=self.moved.notify)
        self.asks: list[VerifyRequested | VerifyWithdrawn] = []
        self.verifying = VerifyDesk(self.asks.append, self.world.clock)
        self.calls = FakeCalls(self.verifying, {"waiting": 2, "running": 1, "completed": 5})
        self.targets = FakeTargets()
        self.notified, self.interrupted = self.calls.notified, self.calls.interrupted
        self.nodes, self.views = nodes_and_views(self.world.owner, self.world.membership, self.world.clock, self.calls)
        self.intake = RequestValidator(
            JobMaker(self.catalog, self.find_kind, self.check_trigger, self.world.clock, places)
        )
        self.holds = FakeHolds()
        self.admin = self.new_admin(self.intake)

    def new_admin(self, intake: RequestValidator | None = None) -> OwnerAdmin:
        """As another node would have it, which remembers nothing of the ids it gave, unless `intake` does."""
        return owner_admin(
            self.world.owner,
            self.catalog,
            self.find_kind,
            self.world.clock,
            self.nodes,
            self.views.view,
            self.moved,
            self.check_trigger,
            self.targets.fault,
            intake,
            self.holds,
        )

    def find_kind(self, name: str) -> FakeKind:
        if name != "replica":
            raise InvalidRequest(f"{name!r} is not a consumer", about="spec.iteration.consumer.kind")
        return self.kind

    def check_trigger(self, trigger: TriggerSpec) -> None:
        if trigger.name not in ("", "nightly"):
            raise InvalidRequest(f"{trigger.name!r} is not allowed", about="spec.trigger.name", remedy="Allow it")

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


def fail(desk: Desk, row: JobRow) -> None:
    status = JobStatus(error_code=ErrorCode.DUPLICATE_KEY, error_msg="rows share a key")
    desk.world.report(row, 5, JobState.ERROR, Reason.NONE, status)
