"""A view whose query is stored is refreshed by processes that have no Spark at all, each of which knows nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from iscp import __version__
from iscp.algebra.algebra import Expr, Join, JoinKind, Project, Table, TypedColumn
from iscp.algebra.stored_query import QueryOrigin, StoredQuery, query_to_json
from iscp.consumers.source_rows import commit_tag
from iscp.consumers.view.view_kind import ViewKind
from iscp.delta.log.live_files import list_files_here, load_state_here
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.source.change_source import DeltaChangeSource
from iscp.engine.iteration_ports import SinkPool
from iscp.model.job.iteration import Bounds
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import NOTHING_APPLIED, SourceMark, Watermark
from iscp.ports.consumer import ConsumeContext, Refreshed, RefreshOrder
from iscp.system.threads import SystemClock
from iscp.views.analysis.session_analysis import analysis_versions
from iscp.views.duck.duck_refresh import schema_json_of
from iscp.views.refresh.view_memory import QUERY_NOTE
from tests.fakes.guards import OpenGuard, ScriptedFailpoints

SQL = "select t.k, u.x from t join u on t.k = u.k"
_K, _OTHER, _X = TypedColumn(1, "k", "long"), TypedColumn(2, "k", "long"), TypedColumn(3, "x", "string")
JOIN = Project(
    (
        Join(
            (Table((), (_K,), "t"), Table((), (_OTHER, _X), "u")),
            JoinKind.INNER,
            Expr("EqualTo", (_K.value, _OTHER.value), "boolean"),
        ),
    ),
    (_K.value, _X.value),
)
CDF = {"delta.enableChangeDataFeed": "true"}


class SessionWasUsedError(Exception):
    pass


class NoSession:
    """Stands where a session does, and cannot be used."""

    def __getattribute__(self, name: str) -> Any:
        raise SessionWasUsedError(name)


class UnaidedView:
    """A view that somebody with Spark has built over tables without rows, and whose query is stored."""

    def __init__(self, root: Path) -> None:
        self.uris = {name: str(root / name) for name in ("t", "u")}
        self.target, self.failpoints = str(root / "view"), ScriptedFailpoints()
        empty = {"t": pa.schema([("k", pa.int64())]), "u": pa.schema([("k", pa.int64()), ("x", pa.string())])}
        for name, uri in self.uris.items():
            write_deltalake(uri, empty[name].empty_table(), configuration=CDF)
        spec = JobSpec(ConsumerSpec("view", self.target, options={"sql": SQL, "tables": self.uris}))
        own, source = self.uris["t"], DeltaChangeSource()
        key = JobKey("default", source.newest(own).table_id, "view")
        self.row = JobRow(key, "view-1", spec.to_json(), own, own)
        self._build(source)
        schemas = {name: source.schema_json(uri, 0) for name, uri in self.uris.items()}
        origin = QueryOrigin(SQL, self.uris, {"iscp": __version__, **analysis_versions()}, schemas)
        content = query_to_json(StoredQuery(JOIN), origin)
        assert content is not None
        self.note = Path(self.target, f"_iscp-{QUERY_NOTE}.json")
        self.note.write_bytes(content)

    def _build(self, source: DeltaChangeSource) -> None:
        sink = DeltaSink(self.target, self.failpoints)
        newest = {uri: source.newest(uri) for uri in self.uris.values()}
        context = self._context(sink, newest[self.row.table_uri].table_id)
        claim = commit_tag(context, "claim", NOTHING_APPLIED, Watermark(), {})
        sink.claim(schema_json_of(JOIN.columns), claim, first=True, with_cdf=True, marks_rows=True)
        context = self._context(sink, newest[self.row.table_uri].table_id)
        marks = {uri: SourceMark(each.table_id, each.to) for uri, each in newest.items()}
        sink.renew(commit_tag(context, "snapshot", NOTHING_APPLIED, newest[self.row.table_uri].to, marks, 0.0))

    def _context(self, sink: Any, table_id: str) -> ConsumeContext:
        session: Any = NoSession()
        return ConsumeContext(session, self.row, table_id, 1, sink.position(self.row), OpenGuard())

    def refresh(self) -> Refreshed:
        """Refresh it as a process does that has just begun."""
        source = DeltaChangeSource(load_state=load_state_here, list_files=list_files_here)
        pool = SinkPool(
            lambda uri: DeltaSink(uri, self.failpoints, load_state_here),
            lambda uri: uri,
            SystemClock(),
            self.failpoints,
            source,
        )
        consumer, end = ViewKind().open(self.row, pool), source.newest(self.row.table_uri)
        try:
            return consumer.refresh(self._context(consumer, end.table_id), RefreshOrder(end, Bounds(), ""))
        finally:
            consumer.tidy()

    @property
    def rows(self) -> list[tuple[int, str]]:
        found = QueryBuilder().register("v", DeltaTable(self.target)).execute("SELECT k, x FROM v").read_all()
        return sorted((each["k"], each["x"]) for each in pa.table(found).to_pylist())


@pytest.fixture
def view(tmp_path: Path) -> UnaidedView:
    return UnaidedView(tmp_path)


def test_many_processes_one_after_another_follow_the_tables(view: UnaidedView) -> None:
    """Past checkpoints of the target, from which on its deletion vectors are not in the log that is opened."""
    for number in range(13):
        write_deltalake(view.uris["t"], pa.table({"k": [number, number]}), mode="append")
        write_deltalake(view.uris["u"], pa.table({"k": [number], "x": [f"x{number}"]}), mode="append")
        if number:
            DeltaTable(view.uris["t"]).delete(f"k = {number - 1}")
        assert view.refresh().strategy == "changes"
        assert view.rows == [(number, f"x{number}")] * 2
    assert list(Path(view.target, "_delta_log").glob("*.checkpoint.parquet"))
    assert view.refresh().strategy == "unchanged"


def test_without_the_file_a_session_is_needed(view: UnaidedView) -> None:
    view.note.unlink()
    assert view.refresh().strategy == "unchanged", "which needs none"
    write_deltalake(view.uris["t"], pa.table({"k": [1]}), mode="append")
    with pytest.raises(SessionWasUsedError):
        view.refresh()
