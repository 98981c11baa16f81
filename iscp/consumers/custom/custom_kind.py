"""Consumers of other people's making (docs/consumers.md): derive from CustomConsumer, and name the class in an entry
point of the group `iscp.consumers`.

Whatever such a class raises or answers is its job's fault alone: it is translated here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, cast

from iscp.consumers.validation import (
    CONSUMER_PATH,
    check_columns,
    refuse_lately_reserved,
    refuse_reserved,
    wanted_columns,
)
from iscp.model.job.iteration import ChangeDetail, DataType, exact_position
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import TargetLog
from iscp.model.job.watermark_record import position_of, record_key
from iscp.model.rows.key_ranges import hashes
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.sql.sql_names import KEY_HASH
from iscp.model.values.errors import Conflict, ErrorCode, InvalidRequest, IscpError, PermanentError, TemporaryError
from iscp.model.values.untrusted_values import error_text, exact_int, is_of_a_job, named_error, plain_error, shown
from iscp.model.values.watermark import Position
from iscp.ports.consumer import (
    ConsumeContext,
    Consumed,
    Consumer,
    ConsumerEnvironment,
    ConsumerKind,
    Needs,
    RangedConsumer,
    Retriever,
    WatermarkTxn,
)
from iscp.ports.source import Catalog, ChangesUnavailableError, TableDescription

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "ChangeDetail",
    "ConsumeContext",
    "ConsumerSpec",
    "CustomConsumer",
    "DataType",
    "InvalidRequest",
    "PermanentError",
    "Position",
    "Retriever",
    "ShardedConsumer",
    "TableDescription",
    "WatermarkTxn",
    "position_of",
]


class CustomConsumer(ABC):
    """A consumer that writes the sink of one job. An instance lives for one iteration, and is used by one thread.

    `changes` is NET, one final change for each key, or ALL, every change in order. With `needs_target` a job without a
    target is refused; where it is not needed, `options` may say where the sink is.
    """

    changes: ClassVar[ChangeDetail] = ChangeDetail.NET
    needs_target: ClassVar[bool] = True

    def __init__(self, row: JobRow) -> None:
        self.row = row
        self.spec = row.spec.consumer
        self.options = self.spec.options
        self.watermark_key = record_key(row.key, self.spec.target)
        """The key under which `update_watermark` stores the record, and `position` finds it."""

    @classmethod  # noqa: B027  (there may be nothing to check)
    def check(cls, spec: ConsumerSpec, source: TableDescription) -> None:
        """Raise InvalidRequest for a target or options that will not do; called before a job is registered.

        Key, columns and filter are checked already.
        """

    @abstractmethod
    def position(self) -> Position:
        """Return the position of the sink: `position_of` the text under `watermark_key`. Read it, never remember it."""

    @abstractmethod
    def consume(self, context: ConsumeContext, retriever: Retriever) -> int | None:
        """Write what `retriever` gives, call its `update_watermark`, and commit: one transaction.

        Returns how many rows were applied, or None for as many as `next` has given. It may raise anything: the
        transaction has to be rolled back then. TemporaryError (or anything foreign) is tried again, PermanentError
        stops the job, ChangesUnavailableError requests a SNAPSHOT instead of a TAIL.
        """


class ShardedConsumer(CustomConsumer):
    """A consumer that writes one range of the keys of a job, whose table may be split: one instance for each range and
    iteration.

    The hash of its key says to which range a row belongs. All that `inserts`, `deletes`, `all` and `next` give has it
    as `_key_hash`, a signed number of 64 bits, to be stored with the row. `hashes` are the lowest and the highest of
    the range. A SNAPSHOT replaces the rows between those, and no others: other ranges have others.
    """

    def __init__(self, row: JobRow) -> None:
        super().__init__(row)
        self.range_id = row.key.range_id
        self.hashes = hashes(row.key.range_id)

    @abstractmethod
    def read_watermark(self, key: str) -> str | None:
        """Return the text that `update_watermark` has put under `key`, or None if there is none. Read it, never
        remember it.
        """

    def position(self) -> Position:
        return position_of(self.read_watermark(self.watermark_key))


class CustomKind(ConsumerKind):
    """A class of CustomConsumer as a kind of consumer."""

    def __init__(self, name: str, consumer: type[CustomConsumer]) -> None:
        self.name = name
        self.needs = Needs(ChangeDetail(consumer.changes), stamped=True, compares=False, target_log=TargetLog.NONE)
        self.refresh = getattr(consumer, "refresh", None)
        self.purge = getattr(consumer, "purge", None)
        self._consumer = consumer
        if issubclass(consumer, ShardedConsumer):
            self.open_range = lambda row, environment: ShardedSink(name, consumer, row)

    def validate(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        if self._consumer.needs_target and not spec.target:
            raise InvalidRequest("is missing", field=f"{CONSUMER_PATH}.target", remedy="Say where to keep it")
        if self.sharded and not spec.key:
            raise InvalidRequest("is missing", field=f"{CONSUMER_PATH}.key", remedy="Name what identifies a row")
        check_columns(spec, source, catalog)
        if self.sharded:
            refuse_reserved(source, KEY_HASH)
        try:
            self._consumer.check(spec, source)
        except (TemporaryError, PermanentError) as error:
            raise plain_error(error) from error
        except BaseException as error:
            raise InvalidRequest(
                f"the consumer {self.name!r} cannot check it: {named_error(error)}",
                about=CONSUMER_PATH,
                remedy="See what it says of its target and options, or repair its check",
                code=ErrorCode.CONSUMER_BROKEN,
            ) from error

    def target_of(self, spec: ConsumerSpec, catalog: Catalog) -> str:
        """Return the target as it is written: only the consumer knows what it is."""
        return spec.target

    def columns(self, spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
        if self.sharded:
            refuse_lately_reserved(source, KEY_HASH)
        return wanted_columns(spec, source)

    def open(self, row: JobRow, environment: ConsumerEnvironment) -> CustomSink:
        return CustomSink(self.name, self._consumer, row)


class CustomSink(Consumer):
    """One job's custom consumer, checked against the contract."""

    def __init__(self, name: str, consumer: type[CustomConsumer], row: JobRow) -> None:
        self._name = name
        with _translate_errors(name, "was made"):
            self._consumer = consumer(row)

    def position(self, row: JobRow) -> Position:
        with _translate_errors(self._name, "returned its position"):
            position: object = self._consumer.position()
        try:
            return exact_position(position)
        except ValueError as error:
            raise _broken(self._name, f"position() answers what cannot be: {error}") from error

    def claim(self, context: ConsumeContext, source: DataFrame) -> Position:
        """Commit nothing: the snapshot that follows is one transaction, and fails what is on its way as well."""
        return context.position

    def consume(self, context: ConsumeContext, retriever: Retriever) -> Consumed:
        try:
            with _translate_errors(self._name, "consumed"):
                rows: object = self._consumer.consume(context, retriever)
        except IscpError:
            context.guard.check()  # what fails because its end was ordered is to be reported so
            raise
        position = self.position(context.row)
        self._check_committed(position, retriever)
        try:
            applied = retriever.rows_given if rows is None else exact_int(rows, "the number of rows")
        except ValueError as error:
            raise _broken(self._name, f"consume() answers what cannot be: {error}") from error
        return Consumed(position, applied, 0)

    def _check_committed(self, position: Position, retriever: Retriever) -> None:
        record = retriever.record
        if (position.seq, position.job_id, position.watermark) == (record.seq, record.job_id, record.watermark):
            return
        if position.seq > record.seq:
            raise Conflict(f"another writer has committed seq {position.seq} after {record.seq}")
        raise _broken(
            self._name,
            f"after consume() it is at seq {position.seq}, version {position.watermark.version}, "
            f"instead of seq {record.seq}, version {record.watermark.version}",
        )


class ShardedSink(CustomSink, RangedConsumer):
    """One range of a job's sharded sink."""

    _consumer: ShardedConsumer

    def __init__(self, name: str, consumer: type[ShardedConsumer], row: JobRow) -> None:
        super().__init__(name, consumer, row)

    def records(self, keys: Sequence[str]) -> dict[str, str | None]:
        with _translate_errors(self._name, "returned its watermarks"):
            found: dict[str, object] = {key: self._consumer.read_watermark(key) for key in keys}
        for key, text in found.items():
            if text is not None and type(text) is not str:
                raise _broken(self._name, f"read_watermark({key!r}) answers {shown(text)}, and neither a str nor None")
        return cast(dict[str, str | None], found)


@contextmanager
def _translate_errors(name: str, doing: str) -> Iterator[None]:
    """Turn whatever the consumer raises, an exit included, into an error of its job that can be stored and shown."""
    try:
        yield
    except ChangesUnavailableError as error:
        raise ChangesUnavailableError(error_text(error)) from error
    except BaseException as error:
        if is_of_a_job(error):
            raise plain_error(error) from error
        raise TemporaryError(
            f"the consumer {name!r} failed when it {doing}: {named_error(error)}", code=ErrorCode.CONSUMER_FAILED
        ) from error


def _broken(name: str, what: str) -> PermanentError:
    return PermanentError(
        f"the consumer {name!r} does not keep to its contract: {what}",
        remedy="Its update_watermark has to be called within the transaction, that has to be committed, and position() "
        "has to read what is there",
        code=ErrorCode.CONSUMER_BROKEN,
    )
