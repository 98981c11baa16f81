"""The kinds `fulltext`, `vector` and `search`: indexes that have the source's rows, by key, and follow them; with the
deletion of an index, and its maintenance beside commits and searches.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from iscp.consumers.index.index_check import IndexCheck
from iscp.consumers.index.index_consumer import IndexConsumer
from iscp.consumers.index.index_plan import IndexPlan
from iscp.consumers.validation import CONSUMER_PATH, check_columns, check_target, require_present, where_columns
from iscp.delta.sink.target_deletion import (
    FILES_AT_ONCE,
    dataset_within,
    refused_deletion,
    require_kept_by,
    shown_files,
)
from iscp.index.embedding.embedding_service import IndexServices
from iscp.index.lance.index_columns import IndexHead, dataset_schema, is_reserved
from iscp.index.lance.index_store import IndexStore, OpenIndex, segments_of, statistics_name
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.word_counts import FOLDER
from iscp.index.maintenance.index_maintenance import MaintenanceDone, MaintenanceLimits, maintain
from iscp.index.maintenance.index_shape import figures_of
from iscp.index.model import definition_parsing
from iscp.index.model.definition_parsing import parse_definition
from iscp.index.model.index_definition import IndexDefinition
from iscp.index.search.search_library import read_dead_letters
from iscp.model.api.api_requests import LeftOutRow, LeftOutRows
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import deletion_id
from iscp.model.job.start_rule import TargetLog
from iscp.model.job.watermark_record import WatermarkRecord, position_of, record_key
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.errors import Conflict, ErrorCode, InvalidRequest, IscpError
from iscp.model.values.untrusted_values import named_error
from iscp.model.values.watermark import NOTHING_APPLIED, Position, Watermark
from iscp.ports.consumer import ConsumerEnvironment, ConsumerKind, Needs
from iscp.ports.sink import Deleted, DeletionOrder
from iscp.ports.source import Catalog, TableDescription
from iscp.ports.system import Clock
from iscp.storage import files
from iscp.storage.delta_errors import storage_faults
from iscp.storage.files import SCRATCH_PREFIX
from iscp.storage.locations import (
    BUILDS,
    DATA,
    DELETIONS,
    INDICES,
    TRANSACTIONS,
    VERSION_HINT,
    VERSIONS,
    manifest_name,
)

log = logging.getLogger(__name__)

# --- deletion ---------------------------------------------------------------------------------------------------------

_REFS = "_refs"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TRIED = r"(?:\.[0-9a-f]{32}\.tmp)?"  # what iscp was about to write when it died
_PART = r"(?:#\d+)?"  # the same of Lance
_OWN_FILE = re.compile(
    rf"{DATA}/[01]{{24}}[0-9a-f]{{26}}\.lance{_PART}"
    rf"|{DELETIONS}/\d+-\d+-\d+\.(?:arrow|bin){_PART}"
    rf"|{INDICES}/{_UUID}/(?:[\w.-]+/)*[\w.#-]+"
    rf"|{FOLDER}/\.?(?:(?:words|keys)-[0-9a-f]{{32}}|segment-{_UUID})\.arrow{_TRIED}"
    rf"|{BUILDS}/[^/]+/[^/]+/\.?[^/]+\.json{_TRIED}"
    rf"|{re.escape(SCRATCH_PREFIX)}[^/]+/file"
)
_OWN_VERSION = re.compile(
    rf"{VERSIONS}/(?:\d{{20}}\.manifest{_PART}|\.tmp_[\w.-]+)|{TRANSACTIONS}/\d+-{_UUID}\.txn{_PART}"
)
_OWN_FOLDER = re.compile(rf"{DELETIONS}|(?:{INDICES}|{BUILDS})(?:/.*)?")


class IndexDeletion:
    """Deletes the index of `store`, as `order` says: its rows, its segments, its versions, and nothing else in its
    directory.

    A commit comes first that takes all rows away, at the next seq, and says whose the deletion is. It is one that
    whatever is based on a version before it cannot pass (`fences`), and its version stays, with a row that has the head
    and nothing else: some kilobytes, by which a writer that has slept for however long still fails. Each try makes such
    a commit of its own, so that no state between two steps is special. A later registration of the place goes on from
    what is left.
    """

    def __init__(self, store: IndexStore, order: DeletionOrder) -> None:
        self._store = store
        self._order = order
        self._root = store.root
        self._record = record_key(order.row.key, order.row.spec.consumer.target)

    def run(self) -> Deleted:
        """Delete the index as `Sink.delete` describes it; raises Conflict too if another writer was first."""
        if not self._store.exists():
            return Deleted(self._order.row.seq)
        with self._store.writing:  # so that the maintenance of this process loses no work against it
            base = self._store.open()
            there = position_of(base.head.records.get(self._record))
            self._require_own(base, there)
            named = _named(base)
            rest = self._begin(base, there.seq + 1)
            self._store.failpoints.reach("deletion.began")
            self._delete_rows(rest, named)
            self._store.failpoints.reach("deletion.rows_gone")
            left = self._delete_versions(rest)
            self._store.failpoints.reach("deletion.over")
        return Deleted(there.seq + 1, shown_files(self._root, left))

    def _require_own(self, base: OpenIndex, there: Position) -> None:
        """Raise PermanentError unless the index is the registration's alone."""
        require_kept_by(self._order.row, self._root, there)
        with lance_faults(f"read {self._root}"):
            rows = base.dataset.count_rows() - 1  # without the head
        if rows != base.head.rows:
            raise refused_deletion(
                f"others have written to {self._root}, which has {rows} rows, and {base.head.rows} by its head, so "
                "that nothing was deleted"
            )
        if within := dataset_within(self._root, own_versions=True):
            raise refused_deletion(f"{within} lies within {self._root}, so that nothing was deleted")
        with storage_faults(f"list {self._root}/{_REFS}"):
            if any(files.names_below(f"{self._root}/{_REFS}", 1)):
                raise refused_deletion(f"{self._root} has tags or branches of others, so that nothing was deleted")

    def _begin(self, base: OpenIndex, seq: int) -> _Rest:
        """Commit that the index is deleted, and return what stays of it. Raises Conflict."""
        record = WatermarkRecord(
            seq=seq,
            watermark=Watermark(),
            job_id=deletion_id(self._order.row.job_id),
            source_id=position_of(base.head.records.get(self._record)).source_id,
            from_version=NOTHING_APPLIED,
            epoch=self._order.epoch,
            attempt=uuid.uuid4().hex[:12],
        )
        commit = self._store.begin(base)
        commit.replace_all(dataset_schema((), 0, 0), IndexHead("", ()), fences=True)
        commit.apply(NOTHING_APPLIED, 0.0)
        commit.put(self._record, record.to_json())
        self._order.guard.check()
        return _Rest(self._root, self._store.open(commit.commit("delete the index").version))

    def _delete_rows(self, rest: _Rest, named: frozenset[str]) -> None:
        """Delete the files of rows and segments: those that the last version named, older ones of known names, and what
        says that ranges of the registration's builds are staged.

        Another file that is not older than the commit is nobody's that is known.
        """
        marks = f"{BUILDS}/{self._order.row.job_id}/"
        with storage_faults(f"delete what {self._root} holds"):
            since_s = rest.since_s()
            gone = (
                path
                for path, at_s in files.files_below(self._root)
                if not rest.has(path)
                and (
                    path in named
                    or "/".join(path.split("/", 2)[:2]) in named
                    or ((at_s < since_s or path.startswith(marks)) and _OWN_FILE.fullmatch(path))
                )
            )
            self._delete(rest, gone)
            for folder in files.folders_below(self._root):
                if _OWN_FOLDER.fullmatch(folder):
                    files.remove_folder(f"{self._root}/{folder}")

    def _delete_versions(self, rest: _Rest) -> list[str]:
        """Delete all versions before the last, the oldest first, and return what else is there."""
        own: list[str] = []
        foreign: list[str] = []
        with storage_faults(f"delete the versions of {self._root}"):
            for path, _ in files.files_below(self._root):
                if not rest.has(path):
                    (own if _OWN_VERSION.fullmatch(path) else foreign).append(path)
            # Names of manifests count down.
            self._delete(rest, sorted(own, reverse=True))
        return foreign

    def _delete(self, rest: _Rest, paths: Iterable[str]) -> None:
        waiting = iter(paths)
        while batch := list(islice(waiting, FILES_AT_ONCE)):
            self._order.guard.check()
            rest.require_newest()
            files.remove_all([f"{self._root}/{path}" for path in batch])


def _named(base: OpenIndex) -> frozenset[str]:
    """Return the files that a version names; of a segment, its directory."""
    fragments = [each.metadata for each in base.dataset.get_fragments()]
    segments = [each.uuid for each in segments_of(base.dataset)]
    paths = {f"{DATA}/{file.path}" for each in fragments for file in each.files}
    paths |= {each.deletion_file.path(each.id) for each in fragments if each.deletion_file is not None}
    paths |= {f"{FOLDER}/{name}" for name in (*base.head.count_files, *map(statistics_name, segments))}
    return frozenset(paths | {f"{INDICES}/{each}" for each in segments})


class _Rest:
    """The version that stays of an index says that it is deleted."""

    def __init__(self, root: str, at: OpenIndex) -> None:
        self._versions = f"{root}/{VERSIONS}"
        self._version = at.version
        self._manifest = manifest_name(at.version)
        fragments = [each.metadata for each in at.dataset.get_fragments()]
        named = {f"{DATA}/{file.path}" for each in fragments for file in each.files}
        self._paths = frozenset({*named, f"{VERSIONS}/{self._manifest}", f"{VERSIONS}/{VERSION_HINT}"})

    def has(self, path: str) -> bool:
        """Return whether a file stays: those of versions after it too, which somebody is about to have made."""
        if path in self._paths or path.startswith(f"{TRANSACTIONS}/{self._version - 1}-"):
            return True
        folder, _, name = path.partition("/")
        return folder == VERSIONS and name < self._manifest

    def since_s(self) -> float:
        """Return when the version was committed (Unix seconds)."""
        if not (found := files.stamp(f"{self._versions}/{self._manifest}")):
            raise Conflict(f"{self._versions} has lost the version {self._version}")
        return found[1] / 1e9

    def require_newest(self) -> None:
        """Raise Conflict if somebody has committed since."""
        if files.exists(f"{self._versions}/{manifest_name(self._version + 1)}"):
            raise Conflict(f"{self._versions} has a version after {self._version}")


# --- maintenance ------------------------------------------------------------------------------------------------------

PENDING_MAX = 10_000
"""Indexes that wait for their maintenance after a commit; with more, the oldest are left to their next refresh."""

BUDGET_S = 5.0
"""Seconds after which no further action of one index is begun while others wait."""

IDLE_S = 3600.0
"""Seconds until an index that has not changed is looked at again."""


AWAITED_S = 3600.0
"""Seconds for which a run waits until an index that it has changed is maintained; then its result says so."""

STOP_SEEN_S = 0.2
"""Seconds after which a run that waits for maintenance sees that it was stopped."""

CLOSE_S = 600.0
"""Seconds for which a process that ends waits for the action of maintenance that is at work."""


class IndexMaintainer:
    """Maintains the indexes of a process, one after another, beside their commits and searches. Safe for threads.

    A thread of its own maintains them after commits, and now and then. Maintenance changes no row, and loses against
    commits of iterations, so nothing of it needs a lease or a seq. It is done on the node that runs the job's shard, as
    that node has committed last.
    """

    def __init__(self, clock: Clock, *, awaited: bool = False, awaited_s: float = AWAITED_S) -> None:
        """`awaited`: runs wait for what they have hastened (`wait`), and `close` ends it, before the process ends.

        Otherwise its end cuts maintenance off, wherever that is; then Lance aborts the process if it is at work.
        """
        self.clock = clock
        self._awaited, self._awaited_s = awaited, awaited_s
        self._pending: OrderedDict[str, tuple[IndexStore, MaintenanceLimits]] = OrderedDict()
        self._changed = threading.Condition()
        self._at_work = threading.Lock()
        self._thread: threading.Thread | None = None
        self._current = ""
        self._unmaintained: dict[str, str] = {}
        self._closed = False

    def hasten(self, store: IndexStore, definition: IndexDefinition) -> None:
        """Have an index maintained soon; several calls before that are one."""
        with self._changed:
            if self._closed:
                return
            # It keeps its place: what is changed more often than its turn comes would never get one otherwise.
            self._pending[store.root] = store, limits_of(definition)
            if len(self._pending) > PENDING_MAX:
                self._pending.popitem(last=False)
            if self._thread is None:
                daemon = not self._awaited
                self._thread = threading.Thread(target=self._run, name="iscp-index-maintenance", daemon=daemon)
                self._thread.start()

    def maintain(self, store: IndexStore, definition: IndexDefinition) -> float:
        """Maintain an index, and return in how many seconds it is to be looked at again. Raises as `maintain`."""
        done = self._carry_out(store, limits_of(definition))
        return IDLE_S if done.next_due_s is None else min(max(done.next_due_s, BUDGET_S), IDLE_S)

    def _carry_out(self, store: IndexStore, limits: MaintenanceLimits) -> MaintenanceDone:
        with self._at_work:  # it takes a core; iterations and searches have the others
            return maintain(store, limits, self.clock, store.failpoints, BUDGET_S)

    def wait(self, store: IndexStore, stopped: Callable[[], bool]) -> str:
        """Wait until an index is maintained that was hastened; return why it is not, or an empty text."""
        root, until_s = store.root, self.clock.monotonic_s() + self._awaited_s
        with self._changed:
            while root == self._current or root in self._pending:
                if stopped() or self._closed:
                    return (
                        f"the index {root} is not maintained, as the run was ended; the next run that changes it does"
                    )
                if self.clock.monotonic_s() >= until_s:
                    return f"the index {root} is still being maintained after {self._awaited_s:.0f} s"
                self._changed.wait(STOP_SEEN_S)
            return self._unmaintained.pop(root, "")

    def close(self) -> None:
        """Begin no further maintenance, and wait for what is at work: it needs threads that the process ends first."""
        with self._changed:
            self._closed = True
            left, thread = [*self._pending], self._thread
            self._pending.clear()
        if thread is not None:
            thread.join(CLOSE_S)
        for words in (*self._unmaintained.values(), *(f"the index {root} is not maintained" for root in left)):
            log.warning("index.unmaintained: %s", words)
        self._unmaintained.clear()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._current = ""
                self._changed.notify_all()
                if not self._pending:
                    self._thread = None
                    return
                root, (store, limits) = self._pending.popitem(last=False)
                self._current = root
            try:
                done = self._carry_out(store, limits)
            except IscpError as error:
                self._fail(root, str(error))
                continue
            except Exception as error:  # of one index; all others are maintained by this thread too
                log.exception("index.unmaintained", extra={"index": root})
                self._fail(root, named_error(error))
                continue
            if done.actions or done.lost:
                actions = ", ".join(each.value for each in done.actions)
                log.info("index.maintained", extra={"index": root, "actions": actions, "lost": len(done.lost)})
            with self._changed:
                self._unmaintained.pop(root, None)
                if done.next_due_s == 0.0 and done.actions and not self._closed:
                    self._pending.setdefault(root, (store, limits))  # the budget was spent: others go first
            if self._awaited and done.lost and not done.actions:
                self._fail(root, "other writers of it were faster")

    def _fail(self, root: str, why: str) -> None:
        if not self._awaited:
            log.warning("index.unmaintained", extra={"index": root, "error": why})
            return
        with self._changed:
            self._unmaintained[root] = (
                f"the index {root} is not maintained: {why}. Searches are right, and slower; the next run that changes "
                "it maintains it"
            )


def limits_of(definition: IndexDefinition) -> MaintenanceLimits:
    vector = definition.vector
    if vector is None:
        return MaintenanceLimits()
    return MaintenanceLimits(metric=vector.metric.value, recall=vector.recall)


# --- the kinds --------------------------------------------------------------------------------------------------------

_KEYLESS = ("float", "double")


class IndexKindBase(ConsumerKind):
    """The kinds of indexes share this base.

    What cannot be followed by changes is repaired by difference: the keys and hashes of the index's rows against those
    of the source's. An index without its rows, or with another definition, is written again in one commit.
    """

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
        definition_parsing.check_columns(definition, _types(source), spec.key)
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

    def settled_at(self, row: JobRow, environment: ConsumerEnvironment) -> Position | None:
        position = self.open(row, environment).position(row)
        return None if position.void or position.dead.rows else position

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
