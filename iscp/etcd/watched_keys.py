"""The keys of tokens and of builds in etcd, their values, and those who write and follow them (docs/etcd-keys.md)."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from sys import intern
from typing import Any, Protocol, assert_never

from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Compare, Delete, EventType, Keys, KeyValue, Put, WatchEvent
from iscp.etcd.watch import CLOSE_WAIT_S, PrefixWatch, WatchedStore, apply_events
from iscp.model.access.authorization import (
    TOKENS_MAX,
    TOKENS_PER_ACCOUNT_MAX,
    TOKENS_SPARE,
    TokenBook,
    TokenRecord,
    ended_before,
)
from iscp.model.access.service_table import Role
from iscp.model.build.build_state import (
    BeginTable,
    BuildState,
    Change,
    CountDone,
    DeleteRetained,
    DeleteStaging,
    DeleteTask,
    DropBuild,
    EndTable,
    ForgetBuilt,
    MarkBuilt,
    PutPlan,
    PutRetained,
    PutStaging,
    PutTask,
    SetPriority,
)
from iscp.model.build.build_task import (
    DEPTH_MAX,
    PRIORITY_MAX,
    BuildPlan,
    BuildTask,
    RetainedSpan,
    StagingTask,
    TaskType,
    depth,
    parse_size,
)
from iscp.model.values.errors import InvalidRequest, IscpError
from iscp.model.values.ids import Leader
from iscp.model.values.progress import TableSize, count_or_unknown
from iscp.model.values.untrusted_values import exact_float, exact_int, exact_name, named_error, printable
from iscp.ports.system import Clock, Threads

# --- tokens -----------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

FORMAT = 1
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class TokenKeys:
    """The keys of tokens below `prefix`, which ends in `/`, and what their values say.

    tokens/<id>   a token: its hash, account, role and end; never the token
    head          written with each change of a token, so that one read says whether any has changed
    """

    prefix: str

    @property
    def head(self) -> str:
        return f"{self.prefix}head"

    @property
    def tokens(self) -> str:
        return f"{self.prefix}tokens/"

    def token(self, token_id: str) -> str:
        return f"{self.tokens}{token_id}"

    def read_token(self, kv: KeyValue) -> TokenRecord | None:
        """Return the token's record; None: it is no token, or none that this version can read; then nobody is known by
        it.
        """
        if not kv.key.startswith(self.tokens):
            return None
        try:
            fields = json.loads(kv.value)
            if exact_int(fields["format"], "format") > FORMAT:
                raise ValueError(f"it is of format {fields['format']}, and this node knows {FORMAT}")
            if not _DIGEST.fullmatch(exact_name(fields["digest"], "digest")):
                raise ValueError("it has no digest")
            return TokenRecord(
                token_id=kv.key.removeprefix(self.tokens),
                digest=fields["digest"],
                account=exact_name(fields["account"], "account"),
                role=Role(fields["role"]),
                created_at_s=exact_float(fields["created_at_s"], "created_at_s"),
                expires_at_s=exact_float(fields["expires_at_s"], "expires_at_s"),
                created_by=exact_name(fields["created_by"], "created_by"),
                note=exact_name(fields["note"], "note"),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("access.unreadable_token", extra={"key": printable(kv.key), "reason": named_error(error)})
            return None


def value_of(record: TokenRecord) -> bytes:
    """Return the value of a token's key."""
    return json.dumps(
        {
            "format": FORMAT,
            "digest": record.digest,
            "account": record.account,
            "role": record.role.value,
            "created_at_s": record.created_at_s,
            "expires_at_s": record.expires_at_s,
            "created_by": record.created_by,
            "note": record.note,
        }
    ).encode()


_CHANGED = b"1"


class EtcdTokens:
    """The port `TokenStore` on etcd: makes and revokes tokens; any node may.

    `cluster_account`: the one for which `account_max` does not hold.
    """

    def __init__(
        self,
        client: EtcdClient,
        keys: Keys,
        cluster_account: str = "",
        tokens_max: int = TOKENS_MAX,
        account_max: int = TOKENS_PER_ACCOUNT_MAX,
    ) -> None:
        self._client = client
        self._keys = TokenKeys(keys.access)
        self._cluster_account = cluster_account
        self._tokens_max = tokens_max
        self._account_max = account_max

    def create(self, record: TokenRecord) -> bool:
        items = self._client.list_prefix(self._keys.tokens).items
        there = [each for each in map(self._keys.read_token, items) if each is not None]
        ended = ended_before(there, record)
        own = sum(each.account == record.account for each in there)
        own_ended = sum(each.account == record.account for each in ended)
        self._check_room(record.account, len(items) - len(ended), own - own_ended)
        key = self._keys.token(record.token_id)
        deleted = [Delete(self._keys.token(each.token_id)) for each in ended if each.token_id != record.token_id]
        writes: tuple[Put | Delete, ...] = (Put(key, value_of(record)), Put(self._keys.head, _CHANGED), *deleted)
        return self._client.txn((Compare.absent(key),), writes).succeeded

    def _check_room(self, account: str, count: int, own: int) -> None:
        """`count`: the tokens there are; `own`: those of the account."""
        wide = account == self._cluster_account
        if own >= self._account_max and not wide:
            raise InvalidRequest(
                f"the account has {own} tokens, and may have {self._account_max}",
                about="token",
                remedy="Revoke those that nobody needs; see `iscp-admin token list`",
            )
        if count >= self._tokens_max + (TOKENS_SPARE if wide else 0):
            raise InvalidRequest(
                "there are as many tokens as there may be",
                about="token",
                remedy="Revoke those that nobody needs; somebody of the cluster-wide account sees all",
            )

    def revoke(self, token_id: str, account: str) -> bool:
        key = self._keys.token(token_id)
        found = self._client.get(key)
        record = self._keys.read_token(found) if found else None
        # One that cannot be read has no account: only who acts for all can delete it.
        if found is None or (account and (record is None or record.account != account)):
            return False
        there = Compare.created_at(key, found.create_revision)
        return self._client.txn((there,), (Delete(key), Put(self._keys.head, _CHANGED))).succeeded

    def records(self) -> list[TokenRecord]:
        found = map(self._keys.read_token, self._client.list_prefix(self._keys.tokens).items)
        return [record for record in found if record is not None]


CONFIRM_S = 1.0
"""How often a node reads whether tokens have changed, beside the watch that brings the changes."""

BEHIND_MAX_S = 2.0
"""How long the watch of tokens may be behind what was read of them; then all are read again."""


class TokenWatch:
    """The port `TokenView`: the tokens as etcd has them, and since when that is certain. One thread follows, one
    confirms.

    A watch alone cannot say that nothing has changed: where its connection hangs, it is silent. So the head, which
    every change writes too, is read once a second (linearizable); what the watch has brought is as of the moment when
    that read was sent, if it is not behind the head. Nobody is let in by tokens once that moment is too long ago.
    """

    def __init__(self, client: WatchedStore, keys: Keys, clock: Clock, threads: Threads) -> None:
        self._client = client
        self._keys = TokenKeys(keys.access)
        self._clock = clock
        self._known: dict[str, KeyValue] = {}
        self._book = TokenBook()
        self._revision = 0
        self._confirmed_s = -math.inf
        self._watch = PrefixWatch(
            client, self._keys.prefix, self._read, self._follow, "access.tokens_unreadable", "etcd-tokens", threads
        )
        self._confirmer = threads.thread("etcd-tokens-confirm", self._confirm_always)

    @property
    def book(self) -> TokenBook:
        return self._book

    @property
    def age_s(self) -> float:
        return self._clock.monotonic_s() - self._confirmed_s

    def start(self) -> None:
        self._watch.start()
        self._confirmer.start()

    def close(self) -> None:
        self._watch.close()
        self._confirmer.join(CLOSE_WAIT_S)

    def _read(self) -> int:
        sent_s = self._clock.monotonic_s()
        listing = self._client.list_prefix(self._keys.prefix)
        self._known = {kv.key: kv for kv in listing.items}
        self._take(listing.revision)
        self._confirmed_s = max(self._confirmed_s, sent_s)
        return listing.revision

    def _follow(self, events: Sequence[WatchEvent]) -> None:
        self._take(apply_events(self._known, events))

    def _take(self, revision: int) -> None:
        records = map(self._keys.read_token, self._known.values())
        self._book = TokenBook(record for record in records if record is not None)
        self._revision = revision  # after the book: what is confirmed by it is there

    def _confirm_always(self) -> None:
        while not self._watch.closed:
            try:
                self._confirm()
            except IscpError as error:
                log.warning("access.tokens_unconfirmed", extra={"reason": str(error), "age_s": round(self.age_s, 1)})
            self._watch.pause(CONFIRM_S)

    def _confirm(self) -> None:
        sent_s = self._clock.monotonic_s()
        head = self._client.get(self._keys.head)
        if not self._revision:
            return  # nothing was listed yet
        if (head.mod_revision if head else 0) <= self._revision:
            self._confirmed_s = sent_s
        elif sent_s - self._confirmed_s > BEHIND_MAX_S:
            log.warning("access.tokens_behind", extra={"revision": self._revision})
            self._watch.read_again()


# --- builds -----------------------------------------------------------------------------------------------------------
# The owner loads and writes the state of builds, and the nodes follow it.

TABLES, PRIORITIES, PLANS, TASKS, DONE, BUILT = "tables", "priorities", "plans", "tasks", "done", "built"
STAGING, KEPT = "staging", "kept"


class BuildKeys:
    """The keys of builds below `prefix`, and their values.

    head                      the term that wrote last; each transaction rests on the one before it
    tables/<table_id>         a table that is being built
    priorities/<table_id>     how urgent a table's build is, where it was set
    plans/<job_id>            what all tasks of a job have in common; it is there when all of them are
    tasks/<job_id>/<task_id>  a task that is not finished
    done/<job_id>/<node_id>   what a node has built of it, so far as its tasks are gone
    kept/<table_id>           the commits of a table whose change rows are retained
    staging/<table_id>/<task_id>  a task that stores such rows, or deletes them, and is not finished
    built/<job_id>            the version that a job is built at, until it has published it
    """

    def __init__(self, prefix: str) -> None:
        """`prefix` ends with a slash."""
        self.prefix = prefix
        self.head = f"{prefix}head"

    def writes_of(self, change: Change) -> Iterator[Put | Delete]:
        match change:
            case PutTask(task):
                yield Put(self.key(TASKS, task.job_id, task.task_id), _encoded_task(task))
            case DeleteTask(job_id, task_id):
                yield Delete(self.key(TASKS, job_id, task_id))
            case CountDone(job_id, node_id, size):
                record = json.dumps({"format": FORMAT, **asdict(size)})
                yield Put(self.key(DONE, job_id, node_id), record.encode())
            case PutPlan(plan):
                yield Put(self.key(PLANS, plan.job_id), json.dumps({"format": FORMAT, **asdict(plan)}).encode())
            case DropBuild(job_id):
                yield Delete(self.key(PLANS, job_id))
                yield Delete(self.key(TASKS, job_id, ""), prefix=True)
                yield Delete(self.key(DONE, job_id, ""), prefix=True)
            case MarkBuilt(job_id, version):
                yield Put(self.key(BUILT, job_id), str(version).encode())
                yield Delete(self.key(PLANS, job_id))
            case ForgetBuilt(job_id):
                yield Delete(self.key(BUILT, job_id))
            case BeginTable(table_id):
                yield Put(self.key(TABLES, table_id), b"")
            case EndTable(table_id):
                yield Delete(self.key(TABLES, table_id))
            case SetPriority(table_id, priority):
                key = self.key(PRIORITIES, table_id)
                yield Put(key, str(priority).encode()) if priority else Delete(key)
            case PutStaging() | DeleteStaging() | PutRetained() | DeleteRetained():
                yield self._staging_write(change)
            case _:
                assert_never(change)

    def _staging_write(self, change: PutStaging | DeleteStaging | PutRetained | DeleteRetained) -> Put | Delete:
        match change:
            case PutStaging(task):
                return Put(self.key(STAGING, task.table_id, task.task_id), _encoded_staging(task))
            case DeleteStaging(table_id, task_id):
                return Delete(self.key(STAGING, table_id, task_id))
            case PutRetained(span):
                record = {"uri": span.table_uri, "since": span.since, "until": span.until, "bytes": span.bytes}
                return Put(self.key(KEPT, span.table_id), json.dumps({"format": FORMAT, **record}).encode())
            case DeleteRetained(table_id):
                return Delete(self.key(KEPT, table_id))

    def read_change(self, kv: KeyValue) -> Change | None:
        """Return the change that the key and its value stand for.

        None, and logged, where the key is none of a build's or cannot be read.
        """
        kind, *names = kv.key.removeprefix(self.prefix).split("/")
        if kv.key == self.head:
            return None
        try:
            names = [intern(exact_name(name, "the name")) for name in names]
            match kind, names:
                case "tables", [table_id]:
                    return BeginTable(table_id)
                case "priorities", [table_id]:
                    return SetPriority(table_id, exact_int(int(kv.value), "the priority", -PRIORITY_MAX, PRIORITY_MAX))
                case "built", [job_id]:
                    return MarkBuilt(job_id, exact_int(int(kv.value), "the version"))
                case "plans", [job_id]:
                    return PutPlan(_read_plan(job_id, json.loads(kv.value)))
                case "done", [job_id, node_id]:
                    return CountDone(job_id, node_id, _read_count(json.loads(kv.value)))
                case "tasks", [job_id, task_id]:
                    return PutTask(_read_task(job_id, task_id, json.loads(kv.value)))
                case "staging", [table_id, task_id]:
                    return PutStaging(_read_staging(table_id, task_id, json.loads(kv.value)))
                case "kept", [table_id]:
                    return PutRetained(_read_span(table_id, json.loads(kv.value)))
            raise ValueError("it is none of a build")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = named_error(error)
            log.warning("etcd.builds.unreadable_key", extra={"key": printable(kv.key), "reason": reason})
            return None

    def follow(self, event: WatchEvent) -> Change | None:
        """Return the change that the event stands for, or None as `read_change`."""
        if event.type is EventType.PUT:
            return self.read_change(event.kv)
        match event.kv.key.removeprefix(self.prefix).split("/"):
            case ["tables", table_id]:
                return EndTable(table_id)
            case ["priorities", table_id]:
                return SetPriority(table_id, 0)
            case ["built", job_id]:
                return ForgetBuilt(job_id)
            case ["plans", job_id]:
                return DropBuild(job_id)  # with it go all tasks of the job, or there were none any more
            case ["tasks", job_id, task_id]:
                return DeleteTask(job_id, task_id)
            case ["staging", table_id, task_id]:
                return DeleteStaging(table_id, task_id)
            case ["kept", table_id]:
                return DeleteRetained(table_id)
        return None

    def key(self, *names: str) -> str:
        return self.prefix + "/".join(names)


def _encoded_task(task: BuildTask) -> bytes:
    record = {
        "format": FORMAT,
        "type": task.task_type.value,
        "aborted": task.aborted,
        "table": task.table_id,
        "range": task.range_id,
        "node": task.node_id,
    }
    return json.dumps(record).encode()


def _read_task(job_id: str, task_id: str, record: Any) -> BuildTask:
    """Return the task. Its ids are shared by thousands of tasks, and interned."""
    range_id = exact_int(record["range"], "range", 1)
    depth(range_id)
    table_id, node_id = (intern(exact_name(record[name], name)) for name in ("table", "node"))
    return BuildTask(task_id, TaskType(record["type"]), bool(record["aborted"]), table_id, job_id, range_id, node_id)


def _encoded_staging(task: StagingTask) -> bytes:
    record = {"uri": task.table_uri, "after": task.after, "until": task.until, "node": task.node_id}
    return json.dumps({"format": FORMAT, "type": TaskType.PROCESS_STAGING.value, **record}).encode()


def _read_staging(table_id: str, task_id: str, record: Any) -> StagingTask:
    uri, node_id = (exact_name(record[name], name) for name in ("uri", "node"))
    after, until = _exact_span(record["after"], record["until"])
    return StagingTask(task_id, table_id, uri, after, until, node_id)


def _read_span(table_id: str, record: Any) -> RetainedSpan:
    since, until = _exact_span(record["since"], record["until"])
    return RetainedSpan(table_id, exact_name(record["uri"], "uri"), since, until, exact_int(record["bytes"], "bytes"))


def _exact_span(after: object, until: object) -> tuple[int, int]:
    first = exact_int(after, "the first version", -1)
    return first, exact_int(until, "the last version", first)


def _read_count(record: Any) -> TableSize:
    return TableSize(count_or_unknown(record["rows"], "rows"), count_or_unknown(record["bytes"], "bytes"))


def _read_plan(job_id: str, record: Any) -> BuildPlan:
    texts = {name: exact_name(record[name], name) for name in ("account", "table_id", "job_name", "table_uri")}
    if not isinstance(record["spec_json"], str):
        raise TypeError("spec_json is no text")
    return BuildPlan(
        job_id=job_id,
        **texts,
        version=exact_int(record["version"], "version"),
        spec_json=record["spec_json"],
        piece_bytes=exact_int(record["piece_bytes"], "piece_bytes", 1),
        depth=exact_int(record["depth"], "depth", 0, DEPTH_MAX),
        size=parse_size(record.get("size") or {}, "size."),
        pin=exact_name(record.get("pin", ""), "pin"),
    )


def watch_builds(
    client: WatchedStore,
    keys: BuildKeys,
    on_read: Callable[[Sequence[Change]], None],
    on_changed: Callable[[Sequence[Change]], None],
    threads: Threads,
) -> PrefixWatch:
    """Follow the keys of builds: all of them once, and then each change.

    Return the watch, which has begun already; both callbacks are called on one thread.
    """

    def read() -> int:
        listing = client.list_prefix(keys.prefix)
        on_read(_readable(map(keys.read_change, listing.items)))
        return listing.revision

    def follow(events: Sequence[WatchEvent]) -> None:
        if changes := _readable(map(keys.follow, events)):
            on_changed(changes)

    watch = PrefixWatch(client, keys.prefix, read, follow, "etcd.builds.unreadable", "etcd-builds", threads)
    watch.start()
    return watch


def _readable(changes: Iterable[Change | None]) -> list[Change]:
    return [change for change in changes if change is not None]


class FencedWrites(Protocol):
    """The part of EtcdElection that writes builds."""

    def write_fenced(self, leader: Leader, *writes: Put | Delete, when: tuple[Compare, ...] = ()) -> int: ...


class EtcdBuilds:
    """The port `BuildStore` on etcd: the owner loads and writes the state of builds, the nodes follow it.

    Each transaction rests on the one that its writer knows: it fails once another has come, be it a late one of the
    same writer, whose answer was lost. So what an owner has loaded is what etcd has, as long as its writes succeed.
    """

    def __init__(self, client: WatchedStore, election: FencedWrites, keys: Keys, threads: Threads) -> None:
        self._client = client
        self._election = election
        self._keys = BuildKeys(keys.builds)
        self._threads = threads
        self._head = 0

    def load(self) -> BuildState:
        listing = self._client.list_prefix(self._keys.prefix)
        self._head = next((kv.mod_revision for kv in listing.items if kv.key == self._keys.head), 0)
        return BuildState.of(change for kv in listing.items if (change := self._keys.read_change(kv)) is not None)

    def write(self, leader: Leader, changes: Sequence[Change]) -> None:
        head = self._keys.head
        writes = chain((Put(head, str(leader.revision).encode()),), *map(self._keys.writes_of, changes))
        known = Compare.modified_at(head, self._head)
        self._head = self._election.write_fenced(leader, *writes, when=(known,))

    def is_current(self) -> bool:
        there = self._client.get(self._keys.head)
        return (there.mod_revision if there is not None else 0) == self._head

    def watch(
        self, on_read: Callable[[Sequence[Change]], None], on_changed: Callable[[Sequence[Change]], None]
    ) -> Callable[[], None]:
        return watch_builds(self._client, self._keys, on_read, on_changed, self._threads).close
