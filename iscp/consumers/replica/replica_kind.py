"""The kind of replicas: Delta tables that have the source's rows, by key, with chosen columns and a filter.

A replica without a key is append-only and has every row ever inserted. What cannot be followed by changes is repaired
by difference: the source's rows at a version against the target's own, by key.
"""

from __future__ import annotations

from collections.abc import Sequence

from iscp.consumers.replica.replica_consumer import DeadLetterBox, ReplicaCheck, ReplicaConsumer, dead_letter_uri
from iscp.consumers.validation import (
    CONSUMER_PATH,
    VOID,
    check_columns,
    check_target,
    normalized_target,
    unwritable_name,
    wanted_columns,
)
from iscp.delta.sink.table_diff import read_first_rows
from iscp.model.api.api_requests import LeftOutRow, LeftOutRows
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.sql.sql_names import DEAD_LETTER_SUFFIX
from iscp.model.values.errors import ErrorCode, InvalidRequest, TableNotFound
from iscp.model.values.watermark import Position
from iscp.ports.consumer import ConsumerEnvironment, ConsumerKind, Needs
from iscp.ports.sink import Deleted, DeletionOrder
from iscp.ports.source import Catalog, TableDescription


class ReplicaKind(ConsumerKind):
    """The kind `replica`."""

    name = "replica"
    needs = Needs(small_snapshots=True)

    def validate(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        self._validate_spec(spec, source, catalog)
        _refuse_unusable(normalized_target(spec.target, catalog), catalog)

    def refuse_occupied(self, spec: ConsumerSpec, catalog: Catalog) -> None:
        """Raise InvalidRequest if an append-only target has rows.

        A target of an earlier registration may be the only place where its rows still are.
        """
        if spec.key or not spec.target:
            return
        try:
            there = catalog.describe(normalized_target(spec.target, catalog))
        except TableNotFound:
            return
        if not there.empty:
            raise InvalidRequest(
                f"{there.uri} holds rows already, which an append-only job would rebuild, without those that the "
                "source has lost",
                about=f"{CONSUMER_PATH}.target",
                remedy="Go on with it by adopt_from (`--adopt --from-version`); or choose a new path, or empty it",
                code=ErrorCode.TARGET_UNUSABLE,
            )

    @property
    def adopting(self) -> ReplicaKind:
        return self

    def validate_adoption(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        self._validate_spec(spec, source, catalog)
        _refuse_unlike(spec, source, catalog.describe(normalized_target(spec.target, catalog)))

    def _validate_spec(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        if spec.options:
            (name, *more) = sorted(spec.options)
            raise InvalidRequest(
                "is given, and a replica takes no options",
                field=f"{CONSUMER_PATH}.options" if more else f"{CONSUMER_PATH}.options.{name}",
                remedy="Leave it out (`shards` is an option of the consumer changefeed)",
            )
        target = check_target(spec, source, catalog)
        if target.endswith(DEAD_LETTER_SUFFIX):
            raise InvalidRequest(
                f"ends in {DEAD_LETTER_SUFFIX}, as tables do in which rows are dead-lettered",
                field=f"{CONSUMER_PATH}.target",
                remedy="Choose another path",
            )
        check_columns(spec, source, catalog)
        storable = tuple(name for name, kind in source.columns.items() if kind != VOID)
        if unwritable := unwritable_name(spec.columns or storable):
            raise InvalidRequest(
                f"would keep the column {unwritable!r}, whose name a target cannot have",
                field=f"{CONSUMER_PATH}.columns",
                remedy="Name the columns to keep, without it; or rename it",
            )
        if spec.key:
            _refuse_unusable(dead_letter_uri(target), catalog)

    def columns(self, spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
        return wanted_columns(spec, source)

    def open(self, row: JobRow, environment: ConsumerEnvironment) -> ReplicaConsumer:
        spec = row.spec
        target = spec.consumer.target
        dead = DeadLetterBox(target, spec.consumer.key, environment) if spec.consumer.key else None
        return ReplicaConsumer(spec, environment.sink(target), dead, environment.source)

    def settled_at(self, row: JobRow, environment: ConsumerEnvironment) -> Position | None:
        position = self.open(row, environment).position(row)
        overtaken = environment.sink(row.spec.consumer.target).overtaken
        return None if overtaken or position.void or position.dead.rows else position

    def delete_target(self, order: DeletionOrder, environment: ConsumerEnvironment) -> Deleted:
        spec = order.row.spec.consumer
        return environment.sink(spec.target).delete(order, [dead_letter_uri(spec.target)] if spec.key else [])

    def dead_letters(self, row: JobRow, limit: int) -> LeftOutRows:
        spec = row.spec.consumer
        if not spec.key:
            return LeftOutRows()
        place = dead_letter_uri(spec.target)
        try:
            found = read_first_rows(place, limit)
        except TableNotFound:  # as it is while no rows share a key
            return LeftOutRows()
        reason = f"other rows have the same {', '.join(spec.key)}"
        return LeftOutRows(tuple(LeftOutRow(each, reason) for each in found), place)

    def check(self, row: JobRow, environment: ConsumerEnvironment) -> ReplicaCheck:
        spec, filtering = row.spec.consumer, self.open(row, environment)
        return ReplicaCheck(spec, environment.sink(spec.target), filtering, environment.source)


def _refuse_unusable(target: str, catalog: Catalog) -> None:
    """Raise InvalidRequest unless a table can be a target, and is new, empty, or was written by iscp before.

    This goes for a target, and for the table of its dead letters.
    """
    try:
        there = catalog.describe(target)
    except TableNotFound:
        return
    fault, remedy = there.target_fault
    if fault:
        raise InvalidRequest(
            f"{target} {fault}", about=f"{CONSUMER_PATH}.target", remedy=remedy, code=ErrorCode.TARGET_UNUSABLE
        )
    if not there.empty and not there.sink_seq:
        raise InvalidRequest(
            f"{target} is a table with rows that iscp did not write",
            about=f"{CONSUMER_PATH}.target",
            remedy="Choose a new path, or empty the table",
            code=ErrorCode.TARGET_UNUSABLE,
        )


def _refuse_unlike(spec: ConsumerSpec, source: TableDescription, target: TableDescription) -> None:
    """Raise InvalidRequest unless a table that is taken over has the columns that the job would give it."""
    fault, remedy = target.target_fault
    if fault:
        raise InvalidRequest(fault, field=f"{CONSUMER_PATH}.target", remedy=remedy, code=ErrorCode.TARGET_UNUSABLE)
    chosen = {name.lower() for name in spec.columns or source.columns}
    wanted = {name.lower(): kind for name, kind in source.columns.items() if name.lower() in chosen and kind != VOID}
    there = {name.lower(): kind for name, kind in target.columns.items() if kind != VOID}
    compared = {name: kind for name, kind in there.items() if spec.key or name in wanted}
    if wanted != compared:
        unlike = sorted(name for name in wanted.keys() | compared.keys() if wanted.get(name) != compared.get(name))
        raise InvalidRequest(
            f"has other columns than the job would keep; they differ in {', '.join(unlike)}",
            field=f"{CONSUMER_PATH}.target",
            remedy="Choose the job's columns as the table has them, or leave out adopt_from to have a new one built",
            code=ErrorCode.TARGET_UNUSABLE,
        )
