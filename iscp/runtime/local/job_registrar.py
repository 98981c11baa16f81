"""Find the job of each request without a job log: the target says whose it is, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from iscp.core.access.account_roots import TARGET_FIELD
from iscp.core.api.api_requests import RegisterRequest
from iscp.core.job.job_row import JobRow
from iscp.core.job.registration_id import parse_job_id, spec_mark
from iscp.core.job.several_tables import tables_of
from iscp.core.run.run_plan import PlannedJob
from iscp.core.run.target_standing import TargetStanding, job_id_for_run, standing_for_run
from iscp.core.spec.spec_parsing import parse_spec
from iscp.core.values.errors import ErrorCode, InvalidRequest
from iscp.core.values.watermark import Position, Watermark, committed_apart
from iscp.ports.catalog import TableDescription
from iscp.ports.consumer import ConsumerKind
from iscp.ports.system import Clock
from iscp.runtime.admin.job_maker import JobMaker
from iscp.runtime.admin.job_names import check_names
from iscp.runtime.iteration.iteration_ports import IterationPorts


@dataclass(frozen=True, slots=True)
class RunOrders:
    """The orders of a run say what it may do.

    `full_refresh`: targets are built from nothing. `take_over`: those that a cluster keeps are taken from it.
    """

    full_refresh: bool = False
    take_over: bool = False


@dataclass(frozen=True, slots=True)
class RegisteredJob:
    """A job of a run, how its target stands to it, and the position of that. With `full` its rows are built again."""

    row: JobRow
    standing: TargetStanding
    position: Position
    full: bool = False
    warning: str = ""

    @property
    def applied(self) -> int:
        """Return the version of its own table that the target is at, and is gone on from; -1: at none."""
        return -1 if self.full else self.position.watermark.version


class JobRegistrar:
    """Registers jobs for the time of a run. Nothing is written by it."""

    def __init__(
        self,
        maker: JobMaker,
        kinds: Callable[[str], ConsumerKind],
        ports: IterationPorts,
        clock: Clock,
        newest: Callable[[str], Watermark],
    ) -> None:
        """`newest` returns a table's newest version and when it was committed, without opening the table."""
        self._maker = maker
        self._kinds = kinds
        self._ports = ports
        self._clock = clock
        self._newest = newest

    def plan(self, request: RegisterRequest, place: str) -> PlannedJob:
        """Return what the job reads and makes, whether or not that is there.

        Raises InvalidRequest, also for names that no job can have: nothing of a run is begun then.
        """
        spec, catalog = parse_spec(request.spec_json), self._maker.catalog(request.job.account)
        self._maker.check_named(request.job, spec)
        kind = self._kinds(spec.consumer.kind)
        own = catalog.locate(request.job.table)
        tables = dict.fromkeys(kind.tables(spec.consumer, catalog).values()) if kind.tables else {}
        reads = (own, *(uri for uri in tables if uri != own))
        target = kind.target_of(spec.consumer, catalog)
        alone = kind.tables is not None
        return PlannedJob(request.job.name, request.job.account, reads, target, place, kind.shared_target, alone)

    def built_by_spark(self, request: RegisterRequest) -> bool:
        """Return whether Spark computes all rows of the job's target where that is built."""
        return self._kinds(parse_spec(request.spec_json).consumer.kind).needs.built_by_spark

    def newest_version(self, uri: str) -> int:
        """Return the newest version of a table. Raises TableNotFound, StorageError."""
        return self._newest(uri).version

    def find_current(self, request: RegisterRequest) -> RegisteredJob | None:
        """Return the job if its target is at the newest commits of all that it reads, and nothing else is due; None: it
        is to be registered, and an iteration finds out.

        No table is opened for that: to open one takes memory and time with the number of its files.
        """
        try:
            return self._find_current(request)
        except Exception:  # noqa: BLE001  (whoever registers the job meets it again, and says so)
            return None

    def _find_current(self, request: RegisterRequest) -> RegisteredJob | None:
        job = request.job
        check_names(job)
        kind, catalog = self._kinds(parse_spec(request.spec_json).consumer.kind), self._maker.catalog(job.account)
        catalog.refuse_links(job.table)
        source = _unopened(job.table, catalog.locate(job.table))
        row = self._maker.make(job, request.spec_json, source, source.table_id, check=False).row
        consumer = self._ports.open(row)
        if consumer.settled is None or kind.held(row.spec.consumer):
            return None
        position = consumer.position(row)
        standing = standing_for_run(position, spec_mark(row.table_uri, row.spec.consumer))
        if standing is not TargetStanding.SAME or not consumer.settled(position) or not self._is_newest(row, position):
            return None
        key = row.key._replace(table_id=position.source_id)
        row = row._replace(key=key, job_id=position.job_id, watermark=position.watermark, seq=position.seq)
        return RegisteredJob(row, standing, position)

    def _is_newest(self, row: JobRow, position: Position) -> bool:
        """Return whether the position is at the newest commit of each table of the job."""
        at = {row.table_uri: position.watermark} | {uri: mark.watermark for uri, mark in position.sources.items()}
        if position.watermark.steps or not at.keys() >= {*tables_of(row).values()}:
            return False
        found = ((self._newest(uri), mark) for uri, mark in at.items())
        return all(now.version == mark.version and not committed_apart(now.at_s, mark.at_s) for now, mark in found)

    def register(self, request: RegisterRequest, orders: RunOrders, *, rebuild: bool = False) -> RegisteredJob:
        """Return the job as its target has it, or a new one. `rebuild`: its target may be built by another spec.

        All of a request is checked unless a run keeps the target under this very spec. Raises IscpError.
        """
        job = request.job
        check_names(job)
        source = self._maker.describe(job.account, job.table)
        item = self._maker.make(job, request.spec_json, source, source.table_id, check=False)
        row, mark = item.row, spec_mark(item.row.table_uri, item.row.spec.consumer)
        position = self._ports.open(row).position(row)
        standing = standing_for_run(position, mark)
        if standing is TargetStanding.SAME and not orders.full_refresh:
            row = row._replace(job_id=position.job_id, watermark=position.watermark, seq=position.seq)
            return RegisteredJob(row, standing, position, warning=item.warning)
        full = self._builds(standing, position, mark, orders, rebuild=rebuild)
        self._maker.check(job, parse_spec(request.spec_json), source)
        if standing is TargetStanding.NEW:
            self._maker.refuse_rebuild(row)
        row = row._replace(job_id=job_id_for_run(position, mark, self._clock.now_s(), full=full))
        return RegisteredJob(row, standing, position, full, item.warning)

    def _builds(
        self, standing: TargetStanding, position: Position, mark: str, orders: RunOrders, *, rebuild: bool
    ) -> bool:
        """Return whether rows that a target has are to be built again.

        Raises InvalidRequest if the user has to agree.
        """
        if standing is TargetStanding.NEW:
            return False
        former = parse_job_id(position.job_id)
        if standing is TargetStanding.KEPT_BY_CLUSTER and not orders.take_over:
            raise InvalidRequest(
                f"is kept by a job of a cluster (registration {position.job_id or 'unknown'})",
                field=TARGET_FIELD,
                remedy="Delete or pause that job and run with --take-over; or choose another target",
                code=ErrorCode.TARGET_UNUSABLE,
            )
        if orders.full_refresh or (rebuild and former.mark != mark):
            return True
        if former.mark != mark:
            raise InvalidRequest(
                "holds rows that were made by another spec (another table, query, key, filter or columns)",
                field=TARGET_FIELD,
                remedy="Run with --full-refresh: the target is built again, and readers see the old rows until then",
                code=ErrorCode.TARGET_UNUSABLE,
            )
        return False


def _unopened(table: str, uri: str) -> TableDescription:
    """Return what is known of a table before it is opened: its place."""
    return TableDescription(table_id="", name=table, uri=uri, version=-1, committed_at_s=0.0)
