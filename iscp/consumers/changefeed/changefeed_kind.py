"""A changefeed: every change of a table, with its former rows, in one order for each shard of the feed.

Where changes cannot be followed there is a snapshot difference: the feed gets all changes in sum, marked as net.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from iscp.consumers.changefeed.changefeed_consumer import SHARDS_MAX, ChangefeedConsumer, DeltaFeedSink
from iscp.consumers.validation import (
    CONSUMER_PATH,
    check_columns,
    check_target,
    refuse_lately_reserved,
    refuse_reserved,
    wanted_columns,
)
from iscp.model.job.iteration import ChangeDetail
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.sql.sql_names import KEY_HASH
from iscp.model.values.errors import ErrorCode, InvalidRequest, TableNotFound
from iscp.model.values.watermark import Position
from iscp.ports.consumer import ConsumerEnvironment, ConsumerKind, Needs
from iscp.ports.source import Catalog, TableDescription

SHARDS_DEFAULT = 1
"""Shards of a changefeed where the job does not say."""

_SHARDS_PROPERTY, _KEY_PROPERTY = "iscp.changefeed.shards", "iscp.changefeed.key"
_UNFIT_TYPES = ("variant", "interval")
"""Types that a feed's rows cannot have."""


class ChangefeedKind(ConsumerKind):
    """The kind `changefeed`."""

    name = "changefeed"
    needs = Needs(ChangeDetail.ALL, stamped=True)

    def validate(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        target = check_target(spec, source, catalog)
        if not spec.key:
            raise InvalidRequest("is missing", field=f"{CONSUMER_PATH}.key", remedy="Name what identifies a row")
        check_columns(spec, source, catalog)
        refuse_reserved(source, KEY_HASH)
        shards = _shards(spec)
        chosen = {name.lower() for name in spec.columns or source.columns}
        for name, kind in source.columns.items():
            if name.lower() in chosen and any(word in kind.lower() for word in _UNFIT_TYPES):
                raise InvalidRequest(
                    f"would keep {name}, which is of type {kind}",
                    field=f"{CONSUMER_PATH}.columns",
                    remedy="Name the columns to keep, without it",
                )
        _refuse_other_table(spec, target, shards, catalog)

    def columns(self, spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
        refuse_lately_reserved(source, KEY_HASH)
        return wanted_columns(spec, source)

    def open_range(self, row: JobRow, environment: ConsumerEnvironment) -> ChangefeedConsumer:
        sink = environment.keep(
            (self.name, row.key.range_id),
            row.spec.consumer.target,
            lambda uri: DeltaFeedSink(uri, environment.clock, environment.failpoints),
        )
        return ChangefeedConsumer(row, sink, _shards(row.spec.consumer) or SHARDS_DEFAULT)

    open = open_range

    def settled_at(self, row: JobRow, environment: ConsumerEnvironment) -> Position | None:
        position = self.open(row, environment).position(row)
        return None if position.void else position


def _shards(spec: ConsumerSpec) -> int | None:
    """Return how many shards a new feed gets, None where the job does not say; raise InvalidRequest for a wrong
    number.
    """
    if unknown := set(spec.options) - {"shards"}:
        raise InvalidRequest(
            f"has unknown names: {', '.join(sorted(unknown))}",
            field=f"{CONSUMER_PATH}.options",
            remedy="A changefeed takes `shards`",
        )
    shards = spec.options.get("shards")
    if shards is None:
        return None
    if (
        not isinstance(shards, int)
        or isinstance(shards, bool)
        or shards.bit_count() != 1
        or not 0 < shards <= SHARDS_MAX
    ):
        raise InvalidRequest(
            f"is {shards!r}",
            field=f"{CONSUMER_PATH}.options.shards",
            remedy=f"Use a power of two, at most {SHARDS_MAX}",
        )
    return shards


def _refuse_other_table(spec: ConsumerSpec, target: str, shards: int | None, catalog: Catalog) -> None:
    """Raise InvalidRequest for a target that is neither new nor a feed as the job would make it."""
    try:
        there = catalog.describe(target)
    except TableNotFound:
        return
    shards_there, key = there.configuration.get(_SHARDS_PROPERTY), there.configuration.get(_KEY_PROPERTY, "[]")
    if shards_there is None:
        fault = "is a table, and no changefeed"
    elif shards is not None and shards_there != str(shards):
        fault = f"is a changefeed with {shards_there} shards, not {shards}"
    elif int(shards_there).bit_count() != 1 or int(shards_there) > SHARDS_MAX:
        fault = f"is a changefeed with {shards_there} shards, which keys cannot be spread over"
    elif [name.lower() for name in json.loads(key)] != [name.lower() for name in spec.key]:
        fault = f"is a changefeed with the key {key}"
    else:
        return
    raise InvalidRequest(
        f"{target} {fault}",
        about=f"{CONSUMER_PATH}.target",
        remedy="Choose a new path, or name what is there",
        code=ErrorCode.TARGET_UNUSABLE,
    )
