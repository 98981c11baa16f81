"""Plays a case with something odd in it: a replica follows the table, without Spark.

Its rows are those of the generator, or what is odd is refused by name; and once that is gone, everything goes on.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from iscp.consumers.replica.replica_consumer import dead_letter_uri
from iscp.consumers.replica.replica_kind import ReplicaKind
from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.job.job_row import LogEntry
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import ErrorCode, IscpError
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.both_ways.keepers import NodeKeeper, Start, without_spark
from tests.fakes.log_program import job
from tests.random_logs.cases import Checkpoint, CheckpointKind, Deed, Dress, Follower, Placing, Step, Vector, Version
from tests.random_logs.columns import FIRST_COLUMNS, Row
from tests.random_logs.data_files import compact
from tests.random_logs.expected import narrowed, wanted
from tests.random_logs.log_writer import LogWriter
from tests.random_logs.odd_cases import (
    NO_HINTS,
    WHOLE,
    Footed,
    Hint,
    Kept,
    Named,
    Odd,
    OddCase,
    Oddity,
    Place,
    SparkPlace,
    Table,
    checkpoint_of,
)
from tests.random_logs.odd_files import (
    HINT,
    Replaced,
    commit_in,
    lie,
    newest_in,
    put_hint,
    says_its_rows,
    spoil,
    take_away,
)
from tests.random_views.plan_check import Wrong

LONG, LONG_ROWS = 256 * 1024, 300
"""Bytes of a long text, and rows that have it: 75 MiB, of a file that has a few kilobytes."""

INSERTED = Version((Step(rows=((3, 1, 1, 0),)),))
UPDATED = Version((Step(Deed.UPDATE, rows=((5, 2, 0, 0),), places=1),))

_AT_TARGET = {Table.TARGET, Place.TARGET_COMMIT, Place.TARGET_CHECKPOINT, Place.TARGET_DATA, Footed.TARGET_DATA}
_AT_DEAD = {Table.DEAD_LETTERS, Place.DEAD_COMMIT, Place.DEAD_DATA, Footed.DEAD_DATA}
_AT_LOG = {Table.JOB_LOG, Place.LOG_COMMIT, Place.LOG_DATA}
NEEDS_SPARK = "needs Spark"
_NO_SPARK = "nothing here needs Spark"


class NeedsSparkError(Exception):
    """What the case is of cannot be seen without it."""


@dataclass(frozen=True, slots=True)
class Said:
    """What came of bringing a target up to date. `newest`: it is at its source's newest version."""

    code: ErrorCode
    text: str
    newest: bool

    def refuses(self, names: Iterator[str]) -> bool:
        """Whether it is refused by one of these names, and not because something gave up."""
        return self.code not in (ErrorCode.OK, ErrorCode.INTERNAL) and any(name in self.text for name in names)


@dataclass
class Follow:
    """A keyed replica of the table at `source`, and the node that keeps it."""

    source: str
    target: str
    start: Start = without_spark

    def __post_init__(self) -> None:
        self.keeper = NodeKeeper(self.start)

    def bring(self, newest: int) -> Said:
        spec = JobSpec(ConsumerSpec("replica", self.target, ("k",)))
        try:
            request = RegisterRequest(JobName(self.source, "copy", "default"), spec.to_json())
            (brought,) = self.keeper.bring_up([request])
        except IscpError as error:
            return Said(error.code, str(error), newest=False)
        except AssertionError as error:
            raise NeedsSparkError from error
        if _NO_SPARK in brought.error:
            raise NeedsSparkError
        return Said(ErrorCode(brought.error_code), brought.error, brought.version == newest)

    def restart(self) -> None:
        self.keeper = NodeKeeper(self.start, dict(self.keeper.rows))

    @property
    def dead(self) -> str:
        return dead_letter_uri(self.target)

    def held(self) -> Counter[Row]:
        return Counter(tuple(row.values())[:FIRST_COLUMNS] for row in rows_of(self.target))

    def letters(self) -> Counter[Row]:
        if not Path(self.dead, "_delta_log").is_dir():
            return Counter()
        return Counter(tuple(row.values())[:FIRST_COLUMNS] for row in rows_of(self.dead))


def rows_of(uri: str) -> list[dict[str, Any]]:
    """The rows of a table that deltalake can open."""
    rows: list[dict[str, Any]] = pa.table(DeltaTable(uri).scan()).to_pylist()
    return rows


def check_odd(case: OddCase, root: Path, start: Start = without_spark) -> tuple[str, Wrong | None]:
    """By which way the case ended, and what is wrong. `root` is a directory of its own, which is removed."""
    try:
        if case.oddity is Oddity.NAME:
            return _NamePlay(case, root, start).run()
        return _LogPlay(case, root).run() if case.where in _AT_LOG else _Play(case, root, start).run()
    except NeedsSparkError:
        return NEEDS_SPARK, None
    finally:
        shutil.rmtree(root, ignore_errors=True)


class _Play:
    """Of a source, and a replica of it."""

    def __init__(self, case: OddCase, root: Path, start: Start) -> None:
        self.case, self.root = case, root
        self.at_target = case.where in _AT_TARGET | _AT_DEAD
        self.follow = Follow(str(root / "source"), str(root / "target"), start)
        dead = case.where in _AT_DEAD
        self.top = Path(self.follow.dead if dead else self.follow.target if self.at_target else self.follow.source)
        self.writer = LogWriter(root / "source", replace(case.setup, **self._needed()))

    def _needed(self) -> dict[str, Any]:
        changes = {"feed": True} if self.case.where in (Place.CHANGE_DATA, Footed.CHANGE_DATA) else {}
        folder = {"placing": Placing.HIVE, "partition": 1} if self.case.where == Place.FOLDER else {}
        featured = self.case.where in [*SparkPlace]
        plain = {} if self.case.oddity is Oddity.HINT else {"placing": Placing.PLAIN}
        # Two of a key are dead letters.
        rows = (*self.case.setup.rows, (7, 0, 0, 0), (8, 0, 0, 0), (8, 1, 0, 0))
        return {"rows": rows, "featured": featured, **plain, **folder, **changes}

    def run(self) -> tuple[str, Wrong | None]:
        case = self.case
        if (case.begun or self.at_target) and (wrong := self._whole("at first")):
            return "", wrong
        for version in self._versions():
            self.writer.commit(version)
        if self.at_target and case.oddity is not Oddity.HINT and (wrong := self._whole("before it is odd")):
            return "", wrong
        undo, names = self._make_odd()
        if case.follows:
            rows = (*case.follows, *[(8, 2, 0, 0)] * (case.where in _AT_DEAD))
            self.writer.commit(Version((Step(rows=rows),)))
        if case.restart:
            self.follow.restart()
        said = self.follow.bring(self.writer.state.version)
        shown = self._shown_letters(names) if self.at_target else None
        undo()
        wrong = self._judge(said, names) or shown
        if wrong is None and self._goes_on:
            wrong = self._whole("afterwards")
        return "refused" if said.code is not ErrorCode.OK else "right", wrong

    @property
    def _goes_on(self) -> bool:
        """What is damaged for good, or cannot be put back, is not followed any more."""
        return self.case.oddity is Oddity.NO_FILE or (self.case.oddity is Oddity.HINT and self.case.kept in WHOLE)

    def _whole(self, when: str) -> Wrong | None:
        said = self.follow.bring(self.writer.state.version)
        if said.code is not ErrorCode.OK or not said.newest:
            return Wrong(f"{self.case.oddity} {when}", f"{said.code.name} {said.text}")
        return self._rows(when)

    def _rows(self, when: str) -> Wrong | None:
        right = wanted(Follower(), self.writer.bags[-1])
        dead = narrowed(self.writer.bags[-1]) - right
        for what, held, there in (("rows", self.follow.held(), right), ("letters", self.follow.letters(), dead)):
            if held != there:
                return Wrong(f"{what} {when}", f"lacks {there - held}, has {held - there}"[:2_000])
        return None

    def _shown_letters(self, names: list[str]) -> Wrong | None:
        """What is shown of dead letters is shown, or refused by name."""
        try:
            ReplicaKind().dead_letters(self.follow.keeper.rows["copy"], 10)
        except IscpError as error:
            if not Said(error.code, str(error), newest=False).refuses(iter(names)):
                return Wrong("shown letters", f"refused by no name of {names}: {error.code.name} {error}")
        return None

    def _versions(self) -> list[Version]:
        """With what is to be odd in the last of them."""
        case = self.case
        if case.oddity is Oddity.HINT:
            made = None if self.at_target else checkpoint_of(case.kept)
            return [*case.versions[:-1], replace(case.versions[-1], checkpoint=made)]
        last = UPDATED if case.where in (Place.CHANGE_DATA, Footed.CHANGE_DATA) else INSERTED
        if case.where in (Place.CHECKPOINT, Footed.CHECKPOINT, Place.CHECKPOINT_PART):
            kept = Kept.PARTS if case.where == Place.CHECKPOINT_PART else Kept.CHECKPOINT
            last = replace(last, checkpoint=checkpoint_of(kept))
        if case.where == SparkPlace.SIDECAR:
            last = replace(last, checkpoint=Checkpoint(CheckpointKind.V2_PARQUET, parts=1))
        if case.where == SparkPlace.VECTOR:
            last = Version((Step(Deed.DELETE, vector=Vector.RELATIVE),))
        if case.where == Place.CHECKSUM:
            last = replace(last, dress=Dress(checksum=True))
        return [*case.versions, last]

    def _make_odd(self) -> tuple[Callable[[], object], list[str]]:
        """What puts it back, and the names of which a refusal has to have one."""
        case = self.case
        match case.oddity:
            case Oddity.HINT:
                return self._hint()
            case Oddity.NO_FILE:
                path = self._file(case.where)
                return Replaced.by(Odd(case.what), path, self.root / "kept").restore, [path.name]
            case Oddity.FOOTER:
                path = self._file(case.where)
                content = path.read_bytes()
                path.write_bytes(lie(content, case.what, case.number))
                self._resize(path, len(content))
                return _nothing, [path.name]
            case _:
                return self._long_values()

    def _hint(self) -> tuple[Callable[[], object], list[str]]:
        log = self.top / "_delta_log"
        if self.at_target:
            self._checkpoint_target(log)
        hint, newest = Hint(self.case.what), newest_in(log)
        put_hint(log, hint, newest)
        spoil(log, self.case.kept)
        names = [HINT] if hint in NO_HINTS else [HINT, ".checkpoint.", str(log), str(log.parent)]
        return lambda: take_away(Path(log, HINT)), names

    def _checkpoint_target(self, log: Path) -> None:
        """No commit of a target is removed but by its writer, so those are there, unless both are gone."""
        if self.case.kept is not Kept.COMMITS:
            DeltaTable(str(self.top)).create_checkpoint()
        if self.case.kept in (Kept.CLEANED, Kept.LOST):
            for version in range(newest_in(log)):
                commit_in(log, version).unlink()

    def _file(self, where: str) -> Path:
        """The file that is to be odd."""
        top, newest = self.top, self.writer.state.version
        log = top / "_delta_log"
        match where:
            case Place.COMMIT:
                return commit_in(log, newest)
            case Place.EARLIER_COMMIT:
                return commit_in(log, newest - 1)
            case Place.CHECKSUM:
                return Path(log, f"{newest:020}.crc")
            case Place.TARGET_COMMIT | Place.DEAD_COMMIT:
                return commit_in(log, newest_in(log))
            case Place.TARGET_CHECKPOINT:
                DeltaTable(str(top)).create_checkpoint()
                return next(log.glob("*.checkpoint.parquet"))
            case Place.CHECKPOINT | Place.CHECKPOINT_PART | Footed.CHECKPOINT:
                return max(log.glob("*.checkpoint*.parquet"))
            case SparkPlace.SIDECAR:
                return max(Path(log, "_sidecars").iterdir())
            case SparkPlace.VECTOR:
                return max(top.glob("deletion_vector_*.bin"))
            case Place.CHANGE_DATA | Footed.CHANGE_DATA:
                return max(Path(top, "_change_data").iterdir())
            case Place.TARGET_DATA | Footed.TARGET_DATA | Place.DEAD_DATA | Footed.DEAD_DATA:
                return max(top.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
            case _:
                found = max(top.rglob("part-*.parquet"), key=lambda path: path.name)
                return found.parent if where == Place.FOLDER else found

    def _resize(self, path: Path, before: int) -> None:
        """Have the log say the file's new size."""
        for commit in Path(path.parents[len(path.relative_to(self.root).parts) - 2], "_delta_log").glob("*.json"):
            lines = commit.read_text().splitlines()
            found = [
                re.sub(f'"size":{before}\\b', f'"size":{path.stat().st_size}', line) if path.name in line else line
                for line in lines
            ]
            if found != lines:
                commit.write_text("".join(f"{line}\n" for line in found))

    def _long_values(self) -> tuple[Callable[[], object], list[str]]:
        """A commit whose file has one long text in many rows; or a checkpoint whose tombstones have one."""
        top, version = self.top, self.writer.state.version + 1
        if self.case.where == Footed.CHECKPOINT:
            path = self._file(Footed.CHECKPOINT)
            rows = pq.read_table(path)
            gone = {"path": "x" * LONG, "deletionTimestamp": 1, "dataChange": True}
            more = pa.Table.from_pylist([{"remove": gone}] * LONG_ROWS, schema=rows.schema)
            _write_long(path, pa.concat_tables([rows, more]))
            return _nothing, [path.name]
        long = [(100 + number, "x" * LONG, 1, "x") for number in range(LONG_ROWS)]
        names = ["k", "v", "g", "p"]
        columns = dict(zip(names, map(list, zip(*long, strict=True)), strict=True))
        held = pa.table({name: columns[name] for name in names if name not in self.writer.state.partitions})
        said = {"partitionValues": dict.fromkeys(self.writer.state.partitions, "x"), "dataChange": True}
        actions: list[dict[str, Any]] = [{"commitInfo": {"operation": "WRITE", "timestamp": 1}}]
        path = Path(top, "long.parquet")
        _write_long(path, held)
        actions.append({"add": said | {"path": path.name, "size": path.stat().st_size, "modificationTime": 1}})
        if self.case.where == Footed.CHANGE_DATA:
            path = Path(top, "_change_data", "long.parquet")
            path.parent.mkdir(exist_ok=True)
            _write_long(path, held.append_column("_change_type", pa.array(["insert"] * LONG_ROWS)))
            more = {"path": f"_change_data/{path.name}", "size": path.stat().st_size, "dataChange": False}
            actions.append({"cdc": said | more})
        if self.case.number % 2:
            lying = lie(path.read_bytes(), "encodings", self.case.number)
            path.write_bytes(lying)
        commit_in(top / "_delta_log", version).write_text("".join(f"{compact(each)}\n" for each in actions))
        self.writer.state.version = version
        self.writer.bags.append(self.writer.bags[-1] + Counter(long))
        self.case = replace(self.case, follows=())
        return _nothing, [path.name]

    def _judge(self, said: Said, names: list[str]) -> Wrong | None:
        case, where = self.case, f"{self.case.oddity} {self.case.where}"
        if said.code is ErrorCode.OK:
            if case.oddity is Oddity.HINT and case.what in NO_HINTS:
                return Wrong(where, f"{case.what} was read over")
            if not said.newest:
                return Wrong(where, "stays at an earlier version, and does not say why")
            loose = case.oddity is Oddity.FOOTER and not says_its_rows(case.what)
            return None if loose else self._rows(f"with {case.oddity}")
        if case.oddity is Oddity.HINT and case.what not in NO_HINTS and case.kept in WHOLE and not self._first:
            return Wrong(where, f"all is there, and it says {said.code.name} {said.text}")
        if not said.refuses(iter(names)):
            return Wrong(where, f"refused by no name of {names}: {said.code.name} {said.text}")
        return None

    @property
    def _first(self) -> bool:
        """Whether deltalake, which takes a hint at version 0 for the truth, has no earlier version to begin with."""
        return self.case.what == Hint.FIRST and not self.at_target


def _nothing() -> None:
    """It stays as it is."""


def _write_long(path: Path, rows: pa.Table) -> None:
    pq.write_table(rows, path, compression="zstd", dictionary_pagesize_limit=2 * LONG)


class _LogPlay:
    """Of the job log alone."""

    def __init__(self, case: OddCase, root: Path) -> None:
        self.case, self.uri = case, str(root)
        root.mkdir(parents=True)
        self.jobs = 0

    def run(self) -> tuple[str, Wrong | None]:
        case, log = self.case, Path(self.uri, "iscp_log", "_delta_log")
        for _ in range(2 + case.number % 3):
            self._append()
        kept = Path(self.uri, "kept")
        undo: Callable[[], object]
        if case.oddity is Oddity.HINT:
            put_hint(log, Hint(case.what), newest_in(log))
            named, undo = HINT, lambda: take_away(log / HINT)
        else:
            newest = commit_in(log, newest_in(log))
            data = max(log.parent.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
            path = newest if case.where == Place.LOG_COMMIT else data
            named, undo = path.name, Replaced.by(Odd(case.what), path, kept).restore
        way, where = "right", f"{case.oddity} {case.where}"
        try:
            self._append()
        except IscpError as error:
            way = "refused"
            may = case.oddity is Oddity.NO_FILE or case.what in NO_HINTS
            if not may or not Said(error.code, str(error), newest=False).refuses(iter([named])):
                return way, Wrong(where, f"{error.code.name} {error}")
        undo()
        self._append()
        return way, None if len(self._load()) == self.jobs else Wrong(where, f"{self.jobs} jobs: {self._load()}")

    def _append(self) -> None:
        """By an owner of its own."""
        joblog = DeltaJobLog(self.uri, SystemClock(), EnvironmentFailpoints())
        joblog.claim_term()
        joblog.load()
        joblog.append([LogEntry(job(self.jobs), f"r{self.jobs}")])
        self.jobs += 1

    def _load(self) -> set[str]:
        joblog = DeltaJobLog(self.uri, SystemClock(), EnvironmentFailpoints())
        joblog.claim_term()
        return {row.key.job_name for row in joblog.load()}


class _NamePlay:
    """Of a table of which something has the name."""

    def __init__(self, case: OddCase, root: Path, start: Start) -> None:
        self.start = start
        self.name, self.named, self.root = case.what, Named(case.where), root
        above = {Named.ABOVE_SOURCE: root / self.name, Named.ABOVE_TARGET: root}
        self.source = above.get(self.named, root) / (self.name if self.named is Named.SOURCE else "source")
        below = root / self.name if self.named is Named.ABOVE_TARGET else root
        self.target = below / (self.name if self.named is Named.TARGET else "target")
        self.columns = [
            "k",
            self.name if self.named is Named.COLUMN else "v",
            self.name if self.named is Named.PARTITION_COLUMN else "p",
        ]
        value = self.name if self.named is Named.PARTITION_VALUE else "x"
        self.rows = [(1, self.name if self.named is Named.TEXT else "a", value), (2, "b", value)]

    def run(self) -> tuple[str, Wrong | None]:
        where = f"{Oddity.NAME} of {self.named}"
        try:
            self.root.mkdir(parents=True)
            self.target.parent.mkdir(exist_ok=True)
            self._write()
        except (OSError, UnicodeError):  # no file system has it, but somebody may say it
            if self.named not in (Named.ABOVE_SOURCE, Named.ABOVE_TARGET, Named.SOURCE, Named.TARGET):
                return "cannot be", None
        said = Follow(str(self.source), str(self.target), self.start).bring(0)
        if said.code is ErrorCode.OK:
            held = sorted(tuple(row[name] for name in self.columns) for row in rows_of(str(self.target)))
            return "right", None if held == self.rows else Wrong(where, f"{held} for {self.rows}")
        if not said.refuses(self._forms()):
            return "refused", Wrong(where, f"refused by no name: {said.code.name} {said.text}")
        made = Path(self.target, "_delta_log").is_dir()
        return "refused", Wrong(where, f"refused, and a table is made: {said.text}") if made else None

    def _forms(self) -> Iterator[str]:
        """The name as a message may have it; of a long path the sign alone."""
        yield from (self.name, repr(self.name)[1:-1], ascii(self.name)[1:-1], json.dumps(self.name)[1:-1])
        yield quote(self.name, errors="replace")

    def _write(self) -> None:
        parted = self.named in (Named.PARTITION_COLUMN, Named.PARTITION_VALUE)
        file = self.source / (f"{self.name}.parquet" if self.named is Named.FILE else "part-1.parquet")
        log = self.source / "_delta_log"
        log.mkdir(parents=True)
        columns = dict(zip(self.columns, map(list, zip(*self.rows, strict=True)), strict=True))
        if parted:
            columns.pop(self.columns[2])
        pq.write_table(pa.table(columns), file)
        kinds = ("long", "string", "string")
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in zip(self.columns, kinds, strict=True)
        ]
        actions = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {
                "metaData": {
                    "id": "0a1b2c3d-0000-4000-8000-00000000a000",
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": json.dumps({"type": "struct", "fields": fields}),
                    "partitionColumns": [self.columns[2]] if parted else [],
                    "configuration": {},
                    "createdTime": 1,
                }
            },
            {
                "add": {
                    "path": quote(file.name, safe="=-_.~"),
                    "partitionValues": {self.columns[2]: self.rows[0][2]} if parted else {},
                    "size": file.stat().st_size,
                    "modificationTime": 1,
                    "dataChange": True,
                }
            },
        ]
        text = "".join(f"{json.dumps(each)}\n" for each in actions)
        commit_in(log, 0).write_text(text)
