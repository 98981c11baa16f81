"""Make a job's row from what is wanted, checked against the tables and its consumer.

The checks of names, and the tables that a spec names, have functions of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from iscp.engine.account_turns import ANYWHERE, PlaceGuard
from iscp.engine.iteration_ports import refuse_unfit
from iscp.model.access.authorization import TARGET_FIELD
from iscp.model.api.api_requests import JobName
from iscp.model.job.job_row import JobRow, Registration, of_table, tables_of
from iscp.model.job.registration_id import name_fault, parse_job_id, spec_mark
from iscp.model.query_plan import QueryExplanation
from iscp.model.spec.spec import ConsumerSpec, JobSpec, TriggerSpec
from iscp.model.spec.spec_parsing import parse_spec
from iscp.model.values.errors import InvalidRequest, TableNotFound
from iscp.model.values.ids import JobKey
from iscp.ports.consumer import ConsumerKind
from iscp.ports.source import Catalog, TableDescription
from iscp.ports.system import Clock

# --- names of a job, its account and its table ------------------------------------------------------------------------

JOB_NAME_LENGTH_MAX = 200
"""Characters of a job's name; a longer one is refused."""


def check_names(job: JobName) -> None:
    if not job.name.strip() or len(job.name) > JOB_NAME_LENGTH_MAX:
        raise InvalidRequest(
            f"must have 1 to {JOB_NAME_LENGTH_MAX} characters", field="job.name", remedy="Name the job"
        )
    if not job.account.strip():
        raise InvalidRequest("is empty", field="job.account", remedy="Leave it out for the default account")


def check_new_names(job: JobName) -> None:
    """Require new names that other commands, logs and terminals take as they are; an existing job with another name
    goes on.
    """
    for text, field in ((job.name, "job.name"), (job.account, "job.account")):
        if fault := name_fault(text):
            raise InvalidRequest(
                f"is {text!a}, {fault}",
                field=field,
                remedy="Use letters, digits and signs of ASCII but for * ? [, and begin with another sign than -",
            )
    refuse_unprintable(job.table, "table")


def refuse_unprintable(text: str, field: str) -> None:
    if not text.isprintable():
        raise InvalidRequest(
            f"is {text!r}, with characters that cannot be printed", field=field, remedy="Leave them out"
        )


# --- tables that a spec names -----------------------------------------------------------------------------------------
# The tables are stored by their URIs, by which they are probed and found.


def with_uris(consumer: ConsumerSpec, kind: ConsumerKind, source: TableDescription, catalog: Catalog) -> ConsumerSpec:
    """Return the spec as the job log stores it, if its kind reads several tables. Raises InvalidRequest,
    TableNotFound.
    """
    if kind.tables is None:
        return consumer
    tables = dict(kind.tables(consumer, catalog))
    if source.uri not in tables.values():
        raise InvalidRequest(
            f"does not name {source.uri}, which the job is on",
            field="spec.iteration.consumer.options.tables",
            remedy="Register the job on one of its tables",
        )
    return replace(consumer, options={**consumer.options, "tables": tables})


def versions_wanted(row: JobRow, version: int | None, versions: Mapping[str, int]) -> dict[str, int]:
    """Return the wanted versions by URI, of the job's own table and others that it reads, which may be named as its
    spec names them.

    Raises InvalidRequest.
    """
    found = {} if version is None else {row.table_uri: version}
    names = {row.table_name: row.table_uri, row.table_uri: row.table_uri, **tables_of(row)}
    names |= {uri: uri for uri in tables_of(row).values()}
    for table, each in versions.items():
        if table not in names:
            raise InvalidRequest(
                f"names {table!r}, which the job does not read",
                field="versions",
                remedy="Name tables as its spec does, or by their URIs",
            )
        if each < 0:
            raise InvalidRequest(
                f"wants version {each} of {table!r}", field="versions", remedy="Leave it out for the newest"
            )
        found[names[table]] = max(each, found.get(names[table], 0))
    return found


# --- the rows of jobs -------------------------------------------------------------------------------------------------

KIND_FIELD = "spec.iteration.consumer.kind"


@dataclass(frozen=True, slots=True)
class JobMaker:
    """Makes the rows of jobs: for the owner, and for who runs them by themselves. Its jobs have no job_id yet.

    `tables` is the catalog of all accounts, of which each may see what `places` say.
    """

    tables: Catalog
    kinds: Callable[[str], ConsumerKind]
    check_trigger: Callable[[TriggerSpec], None]
    clock: Clock
    places: PlaceGuard = ANYWHERE

    def catalog(self, account: str) -> Catalog:
        """Return the catalog as far as the account may see it: all that requests name is looked up in it."""
        return self.places.catalog(account, self.tables)

    def describe(self, account: str, table: str) -> TableDescription:
        """Return a table that a job is to read from now on. Raises as Catalog.describe and Catalog.refuse_links."""
        catalog = self.catalog(account)
        catalog.refuse_links(table)
        return catalog.describe(table)

    def check_named(self, job: JobName, spec: JobSpec) -> None:
        """Raise InvalidRequest for what is wrong with the names in a new job, whatever is there by these names."""
        check_names(job)
        check_new_names(job)
        refuse_unprintable(spec.consumer.target, TARGET_FIELD)
        self.check_trigger(spec.trigger)

    def make(
        self, job: JobName, spec_json: str, source: TableDescription, table_id: str, *, check: bool
    ) -> Registration:
        """Return a job of this spec on `source`, under `table_id`. Raises InvalidRequest; all of it only if `check`."""
        spec = parse_spec(spec_json)
        kind, catalog = self.kinds(spec.consumer.kind), self.catalog(job.account)
        self.places.require_target(job.account, spec.consumer.target, TARGET_FIELD)
        if check:
            self.check(job, spec, source)
        target = kind.target_of(spec.consumer, catalog)
        consumer = with_uris(replace(spec.consumer, target=target), kind, source, catalog)
        to_be = replace(spec, consumer=consumer).to_json()
        row = row_of(job, to_be, source, table_id)._replace(create_at_s=self.clock.now_s())
        self.places.require_job(row)
        warning = _void_warning(spec, source)
        return Registration(row, shared_target=kind.shared_target, sharded=kind.sharded, warning=warning)

    def check(self, job: JobName, spec: JobSpec, source: TableDescription) -> None:
        """Raise InvalidRequest for what a new job, or one with another spec, may not have."""
        refuse_unprintable(spec.consumer.target, TARGET_FIELD)
        refuse_unfit(spec, source)
        self._validate(self.kinds(spec.consumer.kind), spec, source, self.catalog(job.account))
        self.check_trigger(spec.trigger)

    def explain(self, spec_json: str, account: str) -> QueryExplanation:
        """Explain the query. Raises InvalidRequest if the query cannot be maintained, or the consumer maintains
        none.
        """
        consumer = parse_spec(spec_json).consumer
        kind = self.kinds(consumer.kind)
        if kind.explain is None:
            raise InvalidRequest(f"{kind.name} keeps no query", about=KIND_FIELD, remedy="Explain a job that keeps one")
        self.places.require_target(account, consumer.target, TARGET_FIELD)
        return kind.explain(consumer, self.catalog(account))

    def _validate(self, kind: ConsumerKind, spec: JobSpec, source: TableDescription, catalog: Catalog) -> None:
        if spec.adopt_from is None:
            kind.validate(spec.consumer, source, catalog)
            return
        field = "spec.iteration.adopt_from"
        if (adopting := kind.adopting) is None:
            raise InvalidRequest(f"a consumer {kind.name} takes over no table", about=field, remedy="Leave it out")
        try:
            adopting.validate_adoption(spec.consumer, source, catalog)
        except TableNotFound as error:
            raise TableNotFound.from_error(
                error, field=TARGET_FIELD, remedy="Leave out adopt_from to have it built"
            ) from error
        if not catalog.has_version(source.uri, spec.adopt_from):
            raise InvalidRequest(
                f"version {spec.adopt_from} is not in the log of {source.uri}, which ends at {source.version}",
                about=field,
                remedy="Name the version of the source whose rows the target holds",
            )

    def refuse_rebuild(self, row: JobRow) -> None:
        """Raise InvalidRequest if a first registration would rebuild a target that holds what its source has lost.

        One in a cluster that goes on with what a run has left rebuilds nothing.
        """
        spec = row.spec
        refuse_occupied = self.kinds(spec.consumer.kind).refuse_occupied
        if refuse_occupied is None or spec.adopt_from is not None:
            return
        try:
            refuse_occupied(spec.consumer, self.catalog(row.key.account))
        except InvalidRequest:
            if not self._kept_by_run(row):
                raise

    def _kept_by_run(self, row: JobRow) -> bool:
        """Return whether the target is a table that has rows of a run of the very same job."""
        consumer = row.spec.consumer
        with suppress(TableNotFound):
            kept = parse_job_id(self.catalog(row.key.account).describe(consumer.target).sink_job_id)
            return kept.run and kept.mark == spec_mark(row.table_uri, consumer)
        return False


def row_of(job: JobName, spec_json: str, source: TableDescription, table_id: str) -> JobRow:
    """Return a job that is known by `table_id`, whatever id its source has now."""
    row = JobRow(JobKey(job.account, source.table_id, job.name), "", spec_json, job.table, source.uri)
    return of_table(row, table_id)


def _void_warning(spec: JobSpec, source: TableDescription) -> str:
    """Return what of the source a job does not store, and why; empty if that is nothing."""
    wanted = {name.lower() for name in spec.consumer.columns or source.columns}
    void = [path for path in source.void if path.partition(".")[0].lower() in wanted]
    if not void:
        return ""
    return f"not kept, as they are of the type void, until the source gives them another: {', '.join(void)}"
