"""Runs in memory: tables, targets by their paths, and requests for replicas of one table each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from iscp.cluster.requests.job_maker import JobMaker
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.job.iteration import Bounds, Iteration, JobOutcome
from iscp.model.job.registration_id import marked_job_id, spec_mark
from iscp.model.run.run_plan import RunPlan, RunResult
from iscp.model.spec.spec import to_spec_json
from iscp.model.spec.spec_parsing import parse_spec
from iscp.model.values.ids import DEFAULT_ACCOUNT
from iscp.model.values.watermark import Position, Watermark
from iscp.ports.engine import IterationRunner
from iscp.ports.source import TableDescription
from iscp.schedule.runner import Runner
from iscp.standalone.local_run import JobRegistrar, LocalRun, RequestedJob, RunListener, RunOrders, UnitRunner
from tests.fakes.catalog import FakeCatalog
from tests.fakes.clock import FakeClock
from tests.fakes.pipeline import FakeKind, FakeSource, FakeTarget, fake_ports
from tests.fakes.runner import FakeRunner

TABLE = "/lake/orders"


class Heard(RunListener):
    """What a listener hears: names as they begin, and results as they end."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.begun_names = names, list[str]()
        self.ended_results: list[RunResult] = []
        self.on_ended: Callable[[RunResult], object] = lambda result: None

    def begin(self, number: int) -> None:
        self.begun_names.append(self.names[number])

    def end(self, number: int, result: RunResult) -> None:
        assert self.names[number] == result.name
        self.ended_results.append(result)
        self.on_ended(result)


@dataclass
class Local:
    """The parts of a run over one source in memory, which is every table of the catalog."""

    source: FakeSource = field(default_factory=FakeSource)
    kind: FakeKind = field(default_factory=FakeKind)
    clock: FakeClock = field(default_factory=FakeClock)
    catalog: FakeCatalog = field(default_factory=FakeCatalog)

    def __post_init__(self) -> None:
        self.add_table(TABLE)
        self.source.commit({1: "a", 2: "b"})
        self.ports = fake_ports(self.source, lambda name: self.kind, clock=self.clock)
        maker = JobMaker(self.catalog, lambda name: self.kind, lambda trigger: None, self.clock)
        self.registrar = JobRegistrar(
            maker, lambda name: self.kind, self.ports, self.clock, lambda uri: self.source.newest(uri).to
        )

    def add_table(self, uri: str) -> None:
        name = uri.rpartition("/")[2]
        self.catalog.tables[uri] = TableDescription("t-1", name, uri, 1, 1.0, {"id": "long", "v": "string"})

    def target(self, name: str) -> FakeTarget:
        return self.kind.target(f"/lake/{name}")

    def request(self, name: str, table: str = TABLE, where: str = "") -> RegisterRequest:
        fields = {"consumer": "replica", "target": f"/lake/{name}", "key": ["id"], "where": where or None}
        return RegisterRequest(JobName(table, name, DEFAULT_ACCOUNT), to_spec_json(fields))

    def mark(self, request: RegisterRequest) -> str:
        return spec_mark(request.job.table, parse_spec(request.spec_json).consumer)

    def keep(self, name: str, mark: str, *, run: bool, version: int = 1, time: str = "000000000001") -> str:
        """Have somebody keep a target at `version`; return the id that it is kept under."""
        job_id = marked_job_id(time, mark, run=run)
        self.target(name).position = Position(3, Watermark(version, float(version)), job_id, "t-1")
        return job_id

    def requested(self, *requests: RegisterRequest) -> list[RequestedJob]:
        return [
            RequestedJob(each, self.registrar.plan(each, f"jobs.yaml[{number}]"))
            for number, each in enumerate(requests)
        ]

    def units(self, runner: IterationRunner | None = None) -> UnitRunner:
        carrier = runner or Runner(self.ports, Bounds())
        return UnitRunner(lambda: carrier, self.source, self.clock, lambda name: self.kind)

    def run(
        self,
        *requests: RegisterRequest,
        runner: IterationRunner | None = None,
        orders: RunOrders | None = None,
        fail_fast: bool = False,
        parallel: int = 2,
    ) -> tuple[LocalRun, Heard]:
        jobs = self.requested(*requests)
        plan = RunPlan([each.planned for each in jobs], range(len(jobs)), fail_fast)
        heard = Heard([each.planned.name for each in jobs])
        return LocalRun(self.registrar, self.units(runner), jobs, plan, orders or RunOrders(), heard, parallel), heard


class FailingRunner(FakeRunner):
    """Applies `version`, but for the jobs that `faults` has outcomes or errors for, of which each is used up."""

    def __init__(self) -> None:
        super().__init__(self._apply)
        self.faults: dict[str, list[Callable[[JobOutcome], JobOutcome]]] = {}
        self.ran: list[str] = []
        self.version = 1

    def _apply(self, iteration: Iteration, guard: object) -> tuple[JobOutcome, ...]:
        return tuple(self._one(JobOutcome(row, Watermark(self.version, 1.0), row.seq + 1, rows=2, committed=True))
                     for row in iteration.jobs)  # fmt: skip

    def _one(self, outcome: JobOutcome) -> JobOutcome:
        name = outcome.row.key.job_name
        self.ran.append(name)
        faults = self.faults.get(name)
        return faults.pop(0)(outcome) if faults else outcome


def failing(code: int, message: str) -> Callable[[JobOutcome], JobOutcome]:
    """Return what makes an outcome that of a failure, with the position that the target had before."""
    return lambda outcome: replace(
        outcome,
        watermark=outcome.row.watermark,
        seq=outcome.row.seq,
        committed=False,
        rows=0,
        error_code=code,
        error_msg=message,
    )
