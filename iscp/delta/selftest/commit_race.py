"""Lets processes race for the versions of one Delta log, and judges who won.

Decides whether put-if-absent was respected; knows nothing of sessions or of where the log lies. Run as a program it is
a contender that commits through delta-rs: `python -m iscp.delta.selftest.commit_race TABLE NAME`.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import IO, TYPE_CHECKING, Any, Protocol

from iscp.storage import files
from iscp.storage.locations import commit_name, on_s3
from iscp.storage.s3_settings import table_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from deltalake import DeltaTable

ANSWER_TIMEOUT_S = 20.0
"""How long a racing writer may take to answer; then the self-test fails, and the node does not start."""

READ_BYTES_MAX = 4096
"""Bytes taken from a racing writer's output at a time; the rest is taken next."""

SPARK = "spark"
DELTA_RS = "delta-rs"

_READY, _WON, _LOST = "ready", "won", "lost"
_ALREADY_THERE = "java.nio.file.FileAlreadyExistsException"
_NO_ATTEMPT_LEFT = "Failed to commit transaction: 0"
"""The text of delta-rs's error when the version is taken and it may not try the next (max_commit_retries=0)."""


class Breach(Enum):
    """The ways in which a race shows that put-if-absent was broken."""

    NO_WINNER = "nobody won it"
    SEVERAL_WINNERS = "several were reported as its winner"
    LOST = "its winner's commit is not there"
    TORN = "its content is not whole"
    OVERWRITTEN = "it holds another's commit than its winner's"


@dataclass(frozen=True, slots=True)
class Round:
    """One raced version: who was reported to have won it, and what its file holds in the end (None: no file)."""

    version: int
    winners: frozenset[str]
    content: bytes | None


class Contender(Protocol):
    """One who tries to commit versions.

    `prepare` makes ready and is not raced; `start` begins the attempt, and need not wait for its end; `result`
    waits for it and says whether it won.
    """

    name: str

    def prepare(self, version: int) -> None: ...

    def start(self) -> None: ...

    def result(self) -> bool: ...


def commit_lines(name: str, version: int) -> list[str]:
    """Return the lines of a contender's commit: its name is at both ends, so that a torn or mixed file shows."""
    described = {"timestamp": 0, "operation": "RACE", "operationParameters": {}, "by": name}
    return [json.dumps({"commitInfo": described}), json.dumps({"txn": {"appId": name, "version": version}})]


def author_of(content: bytes, version: int) -> str | None:
    """Return whose commit of `version` this is; None if it is not the whole of one."""
    try:
        lines = [json.loads(line) for line in content.decode().splitlines()]
        name, txn = lines[0]["commitInfo"]["by"], lines[-1]["txn"]
        whole = (txn["appId"], txn["version"]) == (name, version)
    except (ValueError, LookupError, TypeError):
        return None
    return str(name) if whole else None


def breach_of(outcome: Round) -> Breach | None:
    """Return what is wrong with one raced version, or None."""
    if not outcome.winners:
        return Breach.NO_WINNER
    if len(outcome.winners) > 1:
        return Breach.SEVERAL_WINNERS
    if outcome.content is None:
        return Breach.LOST
    author = author_of(outcome.content, outcome.version)
    if author is None:
        return Breach.TORN
    return None if author in outcome.winners else Breach.OVERWRITTEN


def breaches(rounds: Iterable[Round]) -> list[tuple[int, Breach]]:
    """Return every version that broke put-if-absent, and how; empty means that all was well."""
    return [(outcome.version, breach) for outcome in rounds if (breach := breach_of(outcome))]


def commit_file(log: str, version: int) -> str:
    """Return the path of a commit in Delta's log."""
    return f"{log}/{commit_name(version)}"


def hadoop_uri(path: str) -> str:
    """Return the URI of a file for Hadoop's Path: a local name stays as it is, as %20 would be no space there."""
    return path if on_s3(path) else f"file:{path}"


def race(log: str, contenders: Sequence[Contender], versions: Iterable[int]) -> list[Round]:
    """Lets all contenders loose on each version at once; the files are read when all is over.

    They start in turn, each first as often as the others: one whose `start` waits for the end of its attempt
    is in a race with those before it, and must beat those after it.
    """
    won: dict[int, frozenset[str]] = {}
    for version in versions:
        turn = version % len(contenders)
        for contender in contenders:
            contender.prepare(version)
        for contender in (*contenders[turn:], *contenders[:turn]):
            contender.start()
        won[version] = frozenset([contender.name for contender in contenders if contender.result()])
    return [Round(version, winners, _content(commit_file(log, version))) for version, winners in won.items()]


def _content(path: str) -> bytes | None:
    try:
        return files.read(path)[0]
    except FileNotFoundError:
        return None


class StoreContender:
    """Commits through an `io.delta.storage.LogStore` of the JVM behind a gateway; `start` waits for the end."""

    def __init__(self, jvm: Any, store: Any, conf: Any, log: str, name: str = SPARK) -> None:
        self.name = name
        self._store, self._conf, self._log = store, conf, log
        # Each step of a Java name is a call to the JVM: made once, not in every round.
        self._path_of: Any = jvm.org.apache.hadoop.fs.Path
        self._list_of: Any = jvm.java.util.Collections.singletonList
        self._write: Callable[[], None] = lambda: None
        self._won = False

    def prepare(self, version: int) -> None:
        path = self._path_of(hadoop_uri(commit_file(self._log, version)))
        actions = self._list_of("\n".join(commit_lines(self.name, version))).iterator()
        self._write = lambda: self._store.write(path, actions, False, self._conf)

    def start(self) -> None:
        """Raises Py4JJavaError if the commit failed for another reason than that the version is there."""
        from py4j.protocol import Py4JJavaError

        try:
            self._write()
            self._won = True
        except Py4JJavaError as fault:
            if fault.java_exception.getClass().getName() != _ALREADY_THERE:
                raise
            self._won = False

    def result(self) -> bool:
        return self._won


class DeltaRsContender:
    """Commits through delta-rs in a child process, which makes the table if there is none.

    Its handle of the table follows the log: each version must have a winner before the next is tried.
    """

    def __init__(self, table: str, name: str = DELTA_RS) -> None:
        self.name = name
        self._child = subprocess.Popen(
            [sys.executable, "-m", __name__, table, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._version = -1

    def await_ready(self) -> None:
        """Waits until the table is there. Raises OSError if the child cannot make it."""
        if (answer := self._answer()) != _READY:
            raise OSError(answer)

    def prepare(self, version: int) -> None:
        self._version = version

    def start(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(b"%d\n" % self._version)

    def result(self) -> bool:
        """Raises OSError if the commit failed for another reason than that the version is there."""
        answer = self._answer()
        if answer not in (_WON, _LOST):
            raise OSError(answer)
        return answer == _WON

    def kill(self) -> None:
        """Send SIGKILL to the child, whatever it is at."""
        self._child.kill()

    def close(self) -> None:
        """Kills the child and waits until it is gone."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()

    def _answer(self) -> str:
        assert self._child.stdout is not None
        return _read_line(self._child.stdout, self.name)


class DeltaRsThread:
    """Commits through delta-rs on a thread of this process, which makes the table if there is none."""

    def __init__(self, table: str, name: str) -> None:
        """Raises OSError if the table cannot be made."""
        self.name = name
        with _as_os_error():
            self._handle = _open_table(table)
        self._thread = ThreadPoolExecutor(1, "iscp-selftest")
        self._won: Future[bool] | None = None
        self._version = -1

    def prepare(self, version: int) -> None:
        with _as_os_error():
            self._handle.update_incremental()
        self._version = version

    def start(self) -> None:
        self._won = self._thread.submit(_commit, self._handle, self.name, self._version)

    def result(self) -> bool:
        """Raises OSError if the commit failed for another reason than that the version is there."""
        assert self._won is not None
        with _as_os_error():
            return self._won.result(ANSWER_TIMEOUT_S)

    def close(self) -> None:
        self._thread.shutdown(wait=False)


@contextmanager
def _as_os_error() -> Iterator[None]:
    from deltalake.exceptions import DeltaError

    try:
        yield
    except DeltaError as fault:
        raise OSError(str(fault)) from fault


def _open_table(table: str) -> DeltaTable:
    """Return the table at `table`, which is made if there is none. Raises DeltaError and OSError."""
    from deltalake import DeltaTable
    from deltalake.schema import Field, PrimitiveType, Schema

    options = table_options(table)
    if DeltaTable.is_deltatable(table, storage_options=options):
        return DeltaTable(table, storage_options=options)
    return DeltaTable.create(table, Schema([Field("x", PrimitiveType("long"))]), storage_options=options)


def _read_line(stream: IO[bytes], name: str) -> str:
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([stream], [], [], ANSWER_TIMEOUT_S)[0]:
            raise TimeoutError(f"{name} has not answered for {ANSWER_TIMEOUT_S:.0f} s")
        part = os.read(stream.fileno(), READ_BYTES_MAX)
        if not part:
            raise ChildProcessError(f"{name} ended before it answered")
        line += part
    return line.decode().strip()


def _contend(table: str, name: str) -> None:
    """The child: a version a line on stdin, what became of it on stdout."""
    from deltalake.exceptions import DeltaError

    def answer(word: object) -> None:
        sys.stdout.write(" ".join(str(word).split()) + "\n")
        sys.stdout.flush()

    try:
        handle = _open_table(table)
    except (DeltaError, OSError) as fault:
        answer(fault)
        return
    answer(_READY)
    for line in sys.stdin:
        try:
            outcome: object = _WON if _commit(handle, name, int(line)) else _LOST
            handle.update_incremental()  # before the answer: the next version is not yet under way
        except (DeltaError, OSError) as fault:
            outcome = fault
        answer(outcome)


def _commit(handle: Any, name: str, version: int) -> bool:
    from deltalake import CommitProperties, PostCommitHookProperties, Transaction
    from deltalake.exceptions import CommitFailedError

    if handle.version() != version - 1:
        raise OSError(f"the log is at {handle.version()}, {version} is not the next")
    try:
        handle.create_write_transaction(
            [],
            mode="append",
            schema=handle.schema(),
            partition_by=[],
            commit_properties=CommitProperties(
                custom_metadata={"by": name}, app_transactions=[Transaction(name, version)], max_commit_retries=0
            ),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
        )
    except CommitFailedError as fault:
        if str(fault) == _NO_ATTEMPT_LEFT:
            return False
        raise
    return True


if __name__ == "__main__":
    _contend(*sys.argv[1:])
