"""Plays a case: its log is written, Spark reads it, and followers run; what they hold is compared with Spark's rows."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from iscp.model.values.errors import PERMANENT_FROM, IscpError, PermanentError
from iscp.spark.session import SparkRuntime
from tests.both_ways.keepers import Keeper
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
    keepers: Sequence[Keeper] = (Keeper.NODE,)
    """Who brings followers up to date, one after the other, over and over again."""
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

    def newest_rows(self, uri: str) -> Bag:
        """Spark's, with nulls for columns that the table does not have."""
        jvm = self._judge._jvm
        assert jvm is not None
        # A snapshot that is brought up to date commit by commit would never meet a checkpoint.
        jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(
            self._judge._jsparkSession, jvm.org.apache.hadoop.fs.Path(uri)
        )
        rows = self._judge.read.format("delta").load(uri)
        lacking = [None] * (len(COLUMNS) - len(rows.columns))
        return Counter((*row, *lacking) for row in rows.collect())


@dataclass
class _Followed:
    """A follower, its job once it has begun, and what that has seen. `stopped`: it was refused, by name."""

    follower: Follower
    node: Node
    target: str
    job: Job | None = None
    stopped: bool = False
    seen: int = -1
    held: Bag = field(default_factory=Counter)


class _Play:
    def __init__(self, check: LogCheck, case: LogCase, root: Path) -> None:
        self.check, self.case, self.root = check, case, root
        self.source = str(root / "source")
        self._turns = cycle(check.keepers)
        ways = {each.by_spark for each in case.followers}
        self.nodes = {by_spark: Node(check.runtime, root / "kept", by_spark) for by_spark in ways}
        self.followed = [
            _Followed(each, self.nodes[each.by_spark], str(root / f"target{place}"))
            for place, each in enumerate(case.followers)
        ]

    def run(self) -> Wrong | None:
        self.writer = LogWriter(Path(self.source), self.case.setup)
        if self.case.setup.run and (wrong := self._round()):
            return wrong
        for version in self.case.versions:
            self.writer.commit(version)
            if version.restart:
                for node in self.nodes.values():
                    node.restart()
            if (version.run or self._is_last) and (wrong := self._round()):
                return wrong
        return None

    @property
    def version(self) -> int:
        return self.writer.state.version

    @property
    def _is_last(self) -> bool:
        return self.version == len(self.case.versions)

    def _round(self) -> Wrong | None:
        """Spark is queried for the newest rows, and wherever a follower has others than the generator."""
        self.keeper = next(self._turns)
        wrong = self._iterate()
        for each in self.followed:
            if wrong is None and each.job is not None and not each.stopped:
                wrong = self._compared(each, each.job)
        if wrong is not None or (self._is_last and self.case.judged):
            return self._misjudged() or wrong
        return None

    def _misjudged(self) -> Wrong | None:
        rows = self.check.newest_rows(self.source)
        if rows == self.writer.bags[-1]:
            return None
        return Wrong(MODEL, difference(rows, self.writer.bags[-1]))

    # --- iterations -----------------------------------------------------------------------------------------------

    def _iterate(self) -> Wrong | None:
        """Those that do not read by themselves share an iteration."""
        for each in self.followed:
            if (
                each.job is None
                and not each.stopped
                and min(each.follower.begins, len(self.case.versions)) <= self.version
            ):
                self._begin(each)
        going = [(each, each.job) for each in self.followed if each.job is not None and not each.stopped]
        for node in self.nodes.values():
            shared = [(each, job) for each, job in going if each.node is node and each.follower.kind is not Kind.VIEW]
            if wrong := self._bring(node, shared):
                return wrong
        for each, job in going:
            if each.follower.kind is Kind.VIEW and (wrong := self._bring(each.node, [(each, job)])):
                return wrong
        return None

    def _begin(self, each: _Followed) -> None:
        try:
            each.job = Job(each.follower, each.node, self.source, each.target, self.check.other)
            if each.follower.ranged and self.writer.state.live and self.keeper is Keeper.NODE:
                each.node.build(each.job)
                self.check.ways[f"{each.follower.kind} by ranges"] += 1
        except IscpError as error:
            if error.code.temporary:
                raise
            self._stop(each, str(error))

    def _stop(self, each: _Followed, message: str) -> None:
        self.check.refused[f"{each.follower.kind}: {message.replace(str(self.root), '')[:150]}"] += 1
        each.stopped = True

    def _bring(self, node: Node, left: list[tuple[_Followed, Job]]) -> Wrong | None:
        """To the newest version. What is refused for good is right, if the error says so."""
        message = ""
        for _ in range(TRIES_MAX):
            if not left:
                return None
            bring = node.bring if self.keeper is Keeper.NODE else node.bring_by_run
            behind = []
            for (each, job), brought in zip(left, bring([job for _, job in left]), strict=True):
                if brought.ok and brought.version == self.version:
                    self.check.ways[f"{each.follower.kind} {brought.strategy}".strip()] += 1
                elif brought.error_code >= PERMANENT_FROM:
                    self._stop(each, brought.error)
                else:
                    behind.append((each, job))
                    message = brought.error or f"stays at version {brought.version}"
            left = behind
        return Wrong(f"a {left[0][0].follower.kind} fails for ever", message) if left else None

    # --- comparisons ----------------------------------------------------------------------------------------------

    def _compared(self, each: _Followed, job: Job) -> Wrong | None:
        wrong = self._compare(each, job)
        each.seen = self.version
        if each.follower.verify and self._is_last and each.follower.kind in (Kind.KEYED, Kind.VIEW):
            return self._verify(each, job, wrong)
        return wrong

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
        where = f"job verify of a {each.follower.kind}"
        try:
            said = each.node.verify(job).equal
        except PermanentError:
            return wrong
        if said and wrong is not None:
            return Wrong(f"{wrong.where}, and job verify says it is equal", wrong.rows)
        if not said and wrong is None:
            return Wrong(where, "says that it differs, and it is equal")
        if wrong is None and each.follower.damage and job.damage() and each.node.verify(job).equal:
            return Wrong(where, "says that it is equal, and it was damaged")
        return wrong
