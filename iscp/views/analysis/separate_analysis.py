"""Analyze users' SQL in a process of its own, which such SQL may end: then it is refused, and the next one starts.

Spark computes what is constant while it analyzes and optimizes, as `repeat('a', 2000000000)`; and what it takes to plan
a query may double with each of its levels. No list of such queries is complete, so that what bounds them all is the
process: its memory, and a time.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from pydantic import TypeAdapter

from iscp.model.query_plan import Operator, QueryShape
from iscp.model.settings.config import S3Config
from iscp.model.values.errors import (
    Canceled,
    EngineError,
    ErrorCode,
    InvalidRequest,
    IscpError,
    PermanentError,
    QueueFull,
    TemporaryError,
    TimedOut,
)
from iscp.ports.admin import still_wanted
from iscp.spark.jvm_launch import SparkSettings, relay_output
from iscp.system.child_process import POLL_S, ExpendableProcess, ProcessEndedError

log = logging.getLogger(__name__)

# --- analyzed queries as data between two processes -------------------------------------------------------------------
# An analyzed query is written as JSON, and read without trusting it.


@dataclass(frozen=True, slots=True)
class _FlatShape:
    """A QueryShape whose operators have no others in them.

    Each stands behind those that it is made of, whose places `inputs` and `subqueries` have. A tree would be as deep in
    JSON as the query is.
    """

    operators: tuple[Operator, ...]
    inputs: tuple[tuple[int, ...], ...]
    subqueries: tuple[tuple[int, ...], ...]
    root: int
    stored: int | None
    schema_json: str
    named: frozenset[str]
    by_group: bool
    whole: Mapping[str, str]
    undecided: str
    by_spark: tuple[str, ...]
    statements: tuple[str, ...]


_FLAT = TypeAdapter(_FlatShape)


def shape_to_json(shape: QueryShape) -> bytes:
    trees = [shape.root] if shape.stored is None else [shape.root, shape.stored]
    # Parents come before their children there.
    operators = [each for tree in reversed(trees) for _, each in reversed([*tree.walk()])]
    places = {id(each): place for place, each in reversed([*enumerate(operators)])}
    return _FLAT.dump_json(
        _FlatShape(
            tuple(replace(each, inputs=(), subqueries=()) for each in operators),
            tuple(tuple(places[id(one)] for one in each.inputs) for each in operators),
            tuple(tuple(places[id(one)] for one in each.subqueries) for each in operators),
            places[id(shape.root)],
            None if shape.stored is None else places[id(shape.stored)],
            shape.schema_json,
            shape.named,
            shape.by_group,
            shape.whole,
            shape.undecided,
            shape.by_spark,
            shape.statements,
        )
    )


def shape_from_json(content: bytes) -> QueryShape:
    """Return the shape that JSON describes; raise ValueError if it describes none."""
    flat = _FLAT.validate_json(content)
    made: list[Operator] = []
    try:
        for operator, inputs, subqueries in zip(flat.operators, flat.inputs, flat.subqueries, strict=True):
            made.append(
                replace(
                    operator,
                    inputs=tuple(made[place] for place in inputs),
                    subqueries=tuple(made[place] for place in subqueries),
                )
            )
        root, stored = made[flat.root], None if flat.stored is None else made[flat.stored]
    except IndexError as error:
        raise ValueError("names an operator that is not there") from error
    return QueryShape(
        root,
        flat.schema_json,
        flat.named,
        stored,
        flat.by_group,
        flat.whole,
        flat.undecided,
        flat.by_spark,
        flat.statements,
    )


# --- the other process ------------------------------------------------------------------------------------------------

ANALYSIS_MAX_S = 20.0
"""How long Spark may take to analyze one query or filter of users; one that takes longer is refused, and its process is
killed.
"""

ANALYSIS_START_MAX_S = 120.0
"""How long the process that analyzes SQL may take to start; then the request fails, and the next one starts another."""

ANALYSES_WAITING_MAX = 64
"""Queries and filters that wait to be analyzed, one after the other; one more is refused with QUEUE_FULL."""

_MODULE = "iscp.views.analysis.analysis_worker"
_JAVA_OPTIONS, _HEAP_SIZES = "spark.driver.extraJavaOptions", ("-Xms", "-Xmn", "-Xmx")
_SMALLER = "Write it with smaller constants and fewer levels; or as several views, each of which reads the one before"


def settings_apart(settings: SparkSettings, memory_mb: int) -> SparkSettings:
    """Return settings for the Spark that analyzes SQL, from those of the node's Spark.

    It takes functions as that does, and reaches no storage and no cluster.
    """
    conf = {
        **settings.conf,
        "spark.driver.memory": f"{memory_mb}m",
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "false",
    }
    if options := conf.get(_JAVA_OPTIONS):
        conf[_JAVA_OPTIONS] = shlex.join(each for each in shlex.split(options) if not each.startswith(_HEAP_SIZES))
    return replace(
        settings,
        work_dir=settings.work_dir / "analysis",
        master="local[1]",
        driver_memory_mb=memory_mb,
        conf=conf,
        s3=S3Config(),
    )


class SeparateAnalysis:
    """The analysis in another process; safe for threads. The process is started when it is first needed, and stays.
    `close` ends it.
    """

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._turn = threading.Lock()
        self._waiting = threading.BoundedSemaphore(ANALYSES_WAITING_MAX)
        self._process: ExpendableProcess | None = None
        self._state = threading.Lock()
        self._closed = False

    def query_shape(self, sql: str, schemas: Mapping[str, str]) -> QueryShape:
        """Return the shape as `Catalog.query_shape` does.

        Raises Canceled if the caller does not wait any more, QueueFull, EngineError.
        """
        answer = self._analyze({"sql": sql, "schemas": dict(schemas)})
        try:
            return shape_from_json(answer)
        except ValueError as error:
            raise EngineError(f"the analysis of the query came to no plan: {error}") from error

    def condition_fault(self, schema_json: str, condition: str) -> str:
        """Return the fault as a `condition_analyzer` does; raise as `query_shape`."""
        answer = self._analyze({"schema_json": schema_json, "condition": condition})
        return str(json.loads(answer)["fault"])

    def close(self) -> None:
        with self._state:
            self._closed = True
            process = self._process
        if process is not None:
            process.kill()

    def _analyze(self, request: dict[str, object]) -> bytes:
        if not self._waiting.acquire(blocking=False):
            raise QueueFull(f"{ANALYSES_WAITING_MAX} queries wait to be analyzed already", remedy="Retry later")
        try:
            while not self._turn.acquire(timeout=POLL_S):
                if not still_wanted():
                    raise Canceled("the caller does not wait for the analysis of its SQL any more")
            try:
                answer = self._answer(request)
            finally:
                self._turn.release()
        finally:
            self._waiting.release()
        if answer.startswith(b'{"error"'):
            raise _error_of(json.loads(answer)["error"])
        return answer

    def _answer(self, request: dict[str, object]) -> bytes:
        process = self._started()
        try:
            process.send(request)
            return process.receive(ANALYSIS_MAX_S, still_wanted)
        except ProcessEndedError as error:
            memory = f"the {self._settings.driver_memory_mb} MB of memory that it has"
            raise self._refusal(f"is too much for Spark to analyze: it needs more than {memory}, or ends it") from error
        except TimedOut as error:
            raise self._refusal(f"takes Spark more than {ANALYSIS_MAX_S:g} s to analyze") from error
        except Canceled:
            self._replace(process)
            raise

    def _refusal(self, message: str) -> InvalidRequest:
        """Return the refusal of SQL that ended the process, or has to."""
        log.warning("sql.analysis_ended", extra={"why": message})
        self._replace(self._process)
        return InvalidRequest(message, field="sql", remedy=_SMALLER)

    def _started(self) -> ExpendableProcess:
        """Return a process that has started; raise EngineError if it cannot start."""
        process = self._process
        if process is None or not process.alive():
            process = self._replace(process)
        if process.ready:
            return process
        try:
            answer = process.receive(ANALYSIS_START_MAX_S, still_wanted)
        except (ProcessEndedError, TimedOut) as error:
            process.kill()
            raise EngineError(
                "the process that analyzes SQL does not start; the node's log has what it said last"
            ) from error
        if "error" in (answered := json.loads(answer)):
            raise _error_of(answered["error"])
        process.ready = True
        return process

    def _replace(self, process: ExpendableProcess | None) -> ExpendableProcess:
        """Replace the process by another one, which starts meanwhile; the caller has its turn."""
        if process is not None:
            process.kill()
            process.close()
        with self._state:
            if self._closed:
                raise Canceled("the node stops")
            self._process = _start(self._settings)
            return self._process


def _start(settings: SparkSettings) -> ExpendableProcess:
    """Start a process and return at once; its Spark is there when it answers for the first time. Raises EngineError."""
    output, _ = relay_output()
    try:
        return ExpendableProcess.start(_MODULE, "the analysis of SQL", "iscp-sql-analysis", _plain(settings), output)
    finally:
        os.close(output)


def _plain(settings: SparkSettings) -> dict[str, object]:
    """Return the settings as JSON, without a storage's keys."""
    given = {each.name: getattr(settings, each.name) for each in fields(settings) if each.name != "s3"}
    return (
        given
        | {"work_dir": str(settings.work_dir), "cache_dir": str(settings.cache_dir)}
        | {"conf": dict(settings.conf)}
    )


def _error_of(answered: Mapping[str, object]) -> IscpError:
    """Return the error that the other process raised, by the codes of the errors."""
    code = ErrorCode(int(str(answered["code"])))
    kind: type[IscpError] = EngineError if code is ErrorCode.ENGINE else TemporaryError
    if not code.temporary:
        kind = InvalidRequest if code is ErrorCode.INVALID_REQUEST else PermanentError
    error = kind(str(answered["message"]), remedy=str(answered["remedy"]), code=code)
    error.field, error.field_is_subject = str(answered["field"]), answered["field_is_subject"] is True
    return error
