"""The kinds `fulltext`, `vector` and `search`: indexes that have the source's rows, by key, and follow them.

What cannot be followed by changes is repaired by difference: the keys and hashes of the index's rows against those of
the source's. An index without its rows, or with another definition, is written again in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from iscp.consumers.index.index_check import IndexCheck
from iscp.consumers.index.index_consumer import IndexConsumer
from iscp.consumers.index.index_deletion import IndexDeletion
from iscp.consumers.index.index_maintainer import IDLE_S, IndexMaintainer
from iscp.consumers.index.index_plan import IndexPlan
from iscp.consumers.index.index_services import IndexServices
from iscp.consumers.validation import CONSUMER_PATH, check_columns, check_target, require_present, where_columns
from iscp.core.api.api_views import LeftOutRow, LeftOutRows
from iscp.core.job.job_row import JobRow
from iscp.core.job.target_state import TargetLog
from iscp.core.spec.spec import ConsumerSpec
from iscp.core.values.errors import ErrorCode, InvalidRequest
from iscp.index.lance.index_columns import is_reserved
from iscp.index.lance.index_store import IndexStore
from iscp.index.maintenance.index_figures import figures_of
from iscp.index.model import definition_columns
from iscp.index.model.definition_parsing import parse_definition
from iscp.index.model.index_definition import IndexDefinition
from iscp.index.search.index_overview import read_dead_letters
from iscp.ports.catalog import Catalog, TableDescription
from iscp.ports.consumer import ConsumerEnvironment, ConsumerKind, Needs
from iscp.ports.sink import Deleted, DeletionOrder

_KEYLESS = ("float", "double")


class IndexKindBase(ConsumerKind):
    """The kinds of indexes share this base."""

    name = ""
    takes_services = True
    needs = Needs(small_snapshots=True, target_log=TargetLog.LANCE)

    def __init__(self, services: IndexServices) -> None:
        self._embeddings = services.embeddings
        self._failpoints = services.failpoints
        self._maintainer = IndexMaintainer(services.clock, awaited=services.awaited)
        services.closing.append(self._maintainer.close)

    def validate(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        if spec.columns:
            raise InvalidRequest(
                "are given, and an index takes its columns as an option",
                field=f"{CONSUMER_PATH}.columns",
                remedy="Name text columns in options.columns, and others to store in options.stored",
            )
        definition = parse_definition(self.name, spec.options)
        target = check_target(spec, source, catalog, TargetLog.LANCE)
        check_columns(spec, source, catalog)
        definition_columns.check_columns(definition, _types(source), spec.key)
        _refuse_key(spec, source)
        _refuse_reserved(definition, spec)
        if definition.vector is not None and definition.vector.embed:
            self._embeddings.registry.check(definition.vector.embed)
        _refuse_unusable(target)

    def columns(self, spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
        stored = parse_definition(self.name, spec.options).stored_columns(spec.key)
        named = {"key": spec.key, "options": stored, "where": where_columns(spec.where)}
        by_name = require_present(named, source)
        wanted = [*stored, *named["where"]]
        return tuple(dict.fromkeys(by_name[name.lower()] for name in wanted))

    def open(self, row: JobRow, environment: ConsumerEnvironment) -> IndexConsumer:
        store, plan = self._store(row, environment), self._plan(row)
        return IndexConsumer(row, store, plan, lambda: self._maintainer.hasten(store, plan.options))

    def delete_target(self, order: DeletionOrder, environment: ConsumerEnvironment) -> Deleted:
        return IndexDeletion(self._store(order.row, environment), order).run()

    def refresh(self, job: JobRow) -> tuple[Sequence[str], float]:
        """Maintain the job's index, which takes no rows of any table; return when to come again (Unix seconds)."""
        store = IndexStore(job.spec.consumer.target, self._failpoints)
        wait_s = self._maintainer.maintain(store, self._plan(job).options) if store.exists() else IDLE_S
        return (), self._maintainer.clock.now_s() + wait_s

    def maintained(self, row: JobRow, stopped: Callable[[], bool]) -> str:
        return self._maintainer.wait(IndexStore(row.spec.consumer.target, self._failpoints), stopped)

    def figures(self, row: JobRow) -> Mapping[str, float]:
        store = IndexStore(row.spec.consumer.target, self._failpoints)
        if not store.exists() or (found := store.open()).head.is_deleted:
            return {}
        return figures_of(found, self._maintainer.clock.now_s())

    def dead_letters(self, row: JobRow, limit: int) -> LeftOutRows:
        place = row.spec.consumer.target
        store = IndexStore(place, self._failpoints)
        if not store.exists() or store.open().head.is_deleted:
            return LeftOutRows()
        return LeftOutRows(tuple(LeftOutRow(each.key, each.fault) for each in read_dead_letters(place, limit)), place)

    def check(self, row: JobRow, environment: ConsumerEnvironment) -> IndexCheck:
        return IndexCheck(self.open(row, environment), self._store(row, environment), self._plan(row))

    def _store(self, row: JobRow, environment: ConsumerEnvironment) -> IndexStore:
        failpoints = environment.failpoints
        return environment.keep("index", row.spec.consumer.target, lambda uri: IndexStore(uri, failpoints))

    def _plan(self, row: JobRow) -> IndexPlan:
        spec = row.spec.consumer
        definition = parse_definition(self.name, spec.options)
        embed = definition.vector.embed if definition.vector is not None else ""
        account = row.key.account
        return IndexPlan(definition, spec.key, (lambda: self._embeddings.service(embed, account)) if embed else None)


class FulltextKind(IndexKindBase):
    """The kind `fulltext`: words of text columns, ranked by BM25."""

    name = "fulltext"


class VectorKind(IndexKindBase):
    """The kind `vector`: nearest neighbours of vectors, which the source has or an embedder makes."""

    name = "vector"


class SearchKind(IndexKindBase):
    """The kind `search`: words and vectors in one index."""

    name = "search"


def _types(source: TableDescription) -> dict[str, str]:
    """Return the types of columns by Spark's names, those of an array's elements among them."""
    found = dict(source.columns)
    for each in json.loads(source.schema_json)["fields"]:
        kind = each["type"]
        if isinstance(kind, dict) and kind.get("type") == "array" and isinstance(kind["elementType"], str):
            found[each["name"]] = f"array<{kind['elementType']}>"
    return found


def _refuse_key(spec: ConsumerSpec, source: TableDescription) -> None:
    types = {name.lower(): kind for name, kind in source.columns.items()}
    for name in spec.key:
        if types[name.lower()] in _KEYLESS:
            raise InvalidRequest(
                f"names {name}, which has the type {types[name.lower()]}, by which rows cannot be identified",
                field=f"{CONSUMER_PATH}.key",
                remedy="Choose a key of whole numbers, texts, decimals, dates, times, booleans or binary values",
            )


def _refuse_reserved(definition: IndexDefinition, spec: ConsumerSpec) -> None:
    if reserved := [name for name in definition.stored_columns(spec.key) if is_reserved(name)]:
        raise InvalidRequest(
            f"would store {', '.join(reserved)}, a name that an index has for something of its own",
            field=f"{CONSUMER_PATH}.options",
            remedy="Leave it out, or have the source give it another name",
        )


def _refuse_unusable(target: str) -> None:
    """Raise InvalidRequest unless a place is free, or has an index already."""
    if fault := IndexStore.fault_of(target):
        raise InvalidRequest(
            f"{target} {fault}",
            about=f"{CONSUMER_PATH}.target",
            remedy="Choose a new path, or remove what is there",
            code=ErrorCode.TARGET_UNUSABLE,
        )
