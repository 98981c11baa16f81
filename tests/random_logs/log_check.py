"""Plays a case: its log is written, Spark reads it, and followers run; what they hold is compared with Spark's rows."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from iscp.adapters.delta.spark.session import SparkRuntime
from iscp.core.errors import ErrorCode, PermanentError
from tests.random_logs.cases import Follower, Kind, LogCase
from tests.random_logs.columns import COLUMNS, Row
from tests.random_logs.expected import OTHER_ROWS, Bag, archive_bounds, passing, wanted
from tests.random_logs.followers import Job, Node
from tests.random_logs.log_writer import LogWriter
from tests.random_views.plan_check import Wrong
from tests.random_views.row_bags import difference

TRIES_MAX = 3
"""Iterations of a job that fails for a while; then it is said to fail for ever."""

MODEL = "the generator's own rows are not Spark's"


@dataclass
class LogCheck:
    """Of cases one after the other, each in a directory of its own below `root`."""

    runtime: SparkRuntime
    root: Path
    ways: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    _numbers: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self._judge = self.runtime.new_session()
        self.other = str(self.root / "u")
        keys, texts = zip(*OTHER_ROWS, strict=True)
        write_deltalake(self.other, pa.table({"k": pa.array(keys, pa.int64()), "x": pa.array(texts, pa.string())}))

    def check(self, case: LogCase) -> Wrong | None:
        """What is wrong at first."""
        root = self.root / str(next(self._numbers))
        try:
            return _Play(self, case, root).run()
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def rows(self, uri: str, version: int) -> Bag:
        """Spark's, with nulls for columns that the table does not have."""
        jvm = self._judge._jvm
        assert jvm is not None
        # A snapshot that is brought up to date commit by commit would never meet a checkpoint.
        jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(
            self._judge._jsparkSession, jvm.org.apache.hadoop.fs.Path(uri)
        )
        rows = self._judge.read.format("delta").option("versionAsOf", version).load(uri)
        lacking = [None] * (len(COLUMNS) - len(rows.columns))
        return Counter((*row, *lacking) for row in rows.collect())


@dataclass
class _Followed:
    """A follower, its job once it has begun, and what that has seen. `stopped`: it was refused, by name."""

    follower: Follower
    node: Node
    job: Job | None = None
    stopped: bool = False
    seen: int = -1
    held: Bag = field(default_factory=Counter)


class _Play:
    def __init__(self, check: LogCheck, case: LogCase, root: Path) -> None:
        self.check, self.case, self.root = check, case, root
        self.source = str(root / "source")
        self.followed = [
            _Followed(each, Node(check.runtime, root / f"log{place}", each.by_spark))
            for place, each in enumerate(case.followers)
        ]

    def run(self) -> Wrong | None:
        self.writer = LogWriter(Path(self.source), self.case.setup)
        if self.case.setup.run and (wrong := self._round()):
            return wrong
        for number, version in enumerate(self.case.versions, start=1):
            self.writer.commit(version)
            last = number == len(self.case.versions)
            if version.restart:
                for each in self.followed:
                    each.node.restart()
            if (version.run or last) and (wrong := self._round()):
                return wrong
        return None

    @property
    def version(self) -> int:
        return self.writer.state.version

    def _round(self) -> Wrong | None:
        """Spark is asked for the newest rows, and wherever a follower has others than the generator."""
        for place, each in enumerate(self.followed):
            if each.stopped or min(each.follower.begins, len(self.case.versions)) > self.version:
                continue
            wrong = self._follow(each, str(self.root / f"target{place}"))
            if wrong is not None:
                return self._misjudged() or wrong
        return self._misjudged() if self.version == len(self.case.versions) else None

    def _misjudged(self) -> Wrong | None:
        rows = self.check.rows(self.source, self.version)
        if rows == self.writer.bags[-1]:
            return None
        return Wrong(MODEL, difference(rows, self.writer.bags[-1]))

    def _follow(self, each: _Followed, target: str) -> Wrong | None:
        if wrong := self._iterate(each, target):
            return wrong
        job = each.job
        if each.stopped or job is None:
            return None
        wrong = self._compare(each, job)
        each.seen, last = self.version, self.version == len(self.case.versions)
        if each.follower.verify and last and each.follower.kind in (Kind.KEYED, Kind.VIEW):
            return self._verify(each, job, wrong)
        return wrong

    def _iterate(self, each: _Followed, target: str) -> Wrong | None:
        """To the newest version. What is refused for good is right, if the error says so."""
        kind = each.follower.kind
        for _ in range(TRIES_MAX):
            try:
                if each.job is None:
                    each.job = Job(each.follower, each.node, self.source, target, self.check.other)
                outcome = each.job.run()
                code, message = outcome.error_code, outcome.error_msg
            except PermanentError as error:
                code, message = error.code, str(error)
            if code == ErrorCode.OK:
                self.check.ways[f"{kind} {outcome.strategy or outcome.data_type}"] += 1
                if outcome.watermark.version == self.version:
                    return None
                message = f"stays at version {outcome.watermark.version}"
            elif code >= ErrorCode.INVALID_REQUEST:
                self.check.refused[f"{kind}: {message.replace(str(self.root), '')[:150]}"] += 1
                each.stopped = True
                return None
        return Wrong(f"a {kind} fails for ever", message)

    def _compare(self, each: _Followed, job: Job) -> Wrong | None:
        kind, rows = each.follower.kind, self.writer.bags[-1]
        if kind is Kind.FEED:
            return self._replay(each, job)
        held = job.held()
        if kind is Kind.ARCHIVE:
            bags = self.writer.bags[each.seen :] if each.seen >= 0 else [Counter[Row](), rows]
            least, most = archive_bounds(each.follower, each.held, bags)
            each.held = held
            if least - held or held - most:
                return Wrong(f"a {kind}", difference(held | least, held) + difference(most & held, held))
            return None
        right = wanted(each.follower, rows)
        return None if held == right else Wrong(f"a {kind}", difference(right, held))

    def _replay(self, each: _Followed, job: Job) -> Wrong | None:
        held: Counter[Row] = Counter()
        for operation, row in job.events():
            held[row] += 1 if operation in ("insert", "update_postimage") else -1
            if held[row] < 0:
                return Wrong("a changefeed takes away what is not there", f"{operation} {row}")
        right = passing(self.writer.bags[-1], each.follower.condition)
        return None if +held == right else Wrong("a changefeed", difference(right, +held))

    def _verify(self, each: _Followed, job: Job, wrong: Wrong | None) -> Wrong | None:
        """`job verify` has to say what Spark's rows say, and see a row that is too many."""
        try:
            said = job.verify()
        except PermanentError:
            return wrong
        if said and wrong is not None:
            return Wrong(f"{wrong.where}, and job verify says it is equal", wrong.rows)
        if not said and wrong is None:
            return Wrong(f"job verify of a {each.follower.kind}", "says that it differs, and it is equal")
        if wrong is None and each.follower.damage and job.damage() and job.verify():
            return Wrong(f"job verify of a {each.follower.kind}", "says that it is equal, and it was damaged")
        return wrong
