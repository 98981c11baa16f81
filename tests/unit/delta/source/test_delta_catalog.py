"""Tables are found by path, URI or name, and described without a JVM."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from iscp.delta.log.commits import APP_ID
from iscp.delta.log.readable_files import LOOKED_AT_MAX, STAGED
from iscp.delta.source.arrow_read import Shape
from iscp.delta.source.delta_catalog import SINK_COMMITS_MAX, DeltaCatalog
from iscp.model.job.start_rule import TargetLog
from iscp.model.query_plan import QueryShape
from iscp.model.values.errors import EngineError, ErrorCode, InvalidRequest, StorageError, TableNotFound
from iscp.storage.files import names_below
from tests.fakes.commit_files import commit_path


@pytest.fixture
def uri(tmp_path: Path) -> str:
    path = str(tmp_path.resolve() / "table")
    table = pa.table({"id": pa.array([1], pa.int64()), "tags": pa.array([["a"]], pa.list_(pa.string()))})
    write_deltalake(path, table, configuration={"delta.enableChangeDataFeed": "true"})
    return path


def test_a_table_as_it_is_now(uri: str) -> None:
    described = DeltaCatalog().describe(uri)
    assert (described.table_id, described.uri, described.version) == (str(DeltaTable(uri).metadata().id), uri, 0)
    assert list(described.columns) == ["id", "tags"]
    assert described.columns["id"] == "long"
    assert described.configuration == {"delta.enableChangeDataFeed": "true"}
    assert (described.sink_seq, described.empty) == (0, False)
    assert described.committed_at_s == pytest.approx(commit_path(uri, 0).stat().st_mtime, abs=60)


def test_a_sink_is_known_by_its_seq_and_an_empty_table_as_empty(uri: str) -> None:
    properties = CommitProperties(app_transactions=[Transaction(APP_ID, 4), Transaction("other", 9)])
    write_deltalake(uri, DeltaTable(uri).to_pyarrow_table(), mode="append", commit_properties=properties)
    assert DeltaCatalog().describe(uri).sink_seq == 4
    DeltaTable(uri).delete()
    assert DeltaCatalog().describe(uri).empty


def commit(uri: str, seq: int | None, user_metadata: str = "") -> None:
    transactions = [] if seq is None else [Transaction(APP_ID, seq)]
    properties = CommitProperties({"userMetadata": user_metadata}, app_transactions=transactions)
    write_deltalake(uri, DeltaTable(uri).to_pyarrow_table(), mode="overwrite", commit_properties=properties)


def test_a_target_names_the_registration_that_its_rows_are_of(uri: str) -> None:
    catalog = DeltaCatalog()
    commit(uri, 3, '{"job_id":"claimed","to":-1}')
    assert catalog.describe(uri).sink_job_id == "", "it has no rows of it yet"
    commit(uri, 4, '{"job_id":"0018c2a7b3f0","to":0}')
    commit(uri, None)
    assert catalog.describe(uri).sink_job_id == "0018c2a7b3f0"
    odd = [
        "",
        "[]",
        "null",
        '{"to":1}',
        '{"job_id":"a"}',
        '{"job_id":7,"to":1}',
        '{"job_id":"a","to":"1"}',
        "[" * 9_000,
    ]
    odd.append(json.dumps({"job_id": "a" * 5_000, "to": 1}))
    for seq, text in enumerate(odd, 5):
        commit(uri, seq, text)
        described = catalog.describe(uri)
        assert (described.sink_seq, described.sink_job_id) == (seq, ""), text[:40]


def test_the_registration_is_searched_among_the_newest_commits_alone(uri: str) -> None:
    catalog = DeltaCatalog()
    commit(uri, 4, '{"job_id":"0018c2a7b3f0","to":0}')
    for number in range(SINK_COMMITS_MAX - 1):
        DeltaTable(uri).alter.set_table_properties({"delta.note": str(number)}, raise_if_not_exists=False)
    assert catalog.describe(uri).sink_job_id == "0018c2a7b3f0"
    DeltaTable(uri).alter.set_table_properties({"delta.note": "last"}, raise_if_not_exists=False)
    assert (catalog.describe(uri).sink_seq, catalog.describe(uri).sink_job_id) == (4, "")


def test_all_spellings_of_a_path_are_one_table(uri: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(uri)
    catalog = DeltaCatalog()
    for spelling in (uri + "/", f"file://{uri}", f"file:{uri}", f"{uri}/../table", str(tmp_path / "link")):
        assert catalog.normalize(spelling) == uri
        assert catalog.describe(spelling).uri == uri
        assert catalog.describe(spelling).name == spelling


def test_a_table_that_a_job_is_to_read_is_not_named_through_a_link(uri: str, tmp_path: Path) -> None:
    top = tmp_path.resolve()
    (top / "link").symlink_to(uri)
    (top / "lake").symlink_to(top, target_is_directory=True)
    (top / "second").symlink_to("link")
    names = {"sales.linked": f"file:{top}/lake/table", "sales.plain": uri}
    catalog = DeltaCatalog(names.__getitem__)
    for table, link in (
        (f"{top}/link", "link"),
        (f"file://{top}/link/", "link"),
        (f"{top}/lake/table", "lake"),
        (f"{top}/lake/second", "lake"),
        (f"{top}/second", "second"),
        ("sales.linked", "lake"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            catalog.refuse_links(table)
        said = refused.value
        assert said.message.startswith(f"{table} leads through the link {top}/{link} to {uri}")
        assert (said.field, said.remedy) == ("table", f"Give the path that it leads to: {uri}")
        assert catalog.describe(table).uri == uri
    for table in (uri, f"{top}/link/../table", "sales.plain", f"{top}/none"):
        catalog.refuse_links(table)
    DeltaCatalog(s3=True).refuse_links("s3://lake/table")


def test_a_path_is_normalized_whether_or_not_a_table_is_there() -> None:
    assert DeltaCatalog().normalize("/no/such//table/") == "/no/such/table"


@pytest.mark.parametrize("table", ["", "  "])
def test_an_empty_name_is_refused(table: str) -> None:
    with pytest.raises(InvalidRequest, match="table is empty"):
        DeltaCatalog().describe(table)


def test_names_are_resolved_only_where_there_is_a_catalog_and_paths_never(uri: str, tmp_path: Path) -> None:
    asked: list[str] = []

    def resolve(name: str) -> str:
        asked.append(name)
        return f"file:{uri}"

    catalog = DeltaCatalog(resolve)
    assert catalog.describe("sales.orders").uri == uri
    assert catalog.describe("main.sales.orders").name == "main.sales.orders"
    assert catalog.describe(uri).uri == uri
    assert asked == ["sales.orders", "main.sales.orders"]
    with pytest.raises(TableNotFound):
        DeltaCatalog().describe("sales.orders")


@pytest.mark.parametrize("there", ["nothing", "directory", "file"])
def test_what_is_not_a_delta_table_is_refused_by_its_name(tmp_path: Path, there: str) -> None:
    place = tmp_path / "place"
    if there == "file":
        place.write_text("x")
    elif there == "directory":
        place.mkdir()
    with pytest.raises(TableNotFound, match="is not a Delta table") as refused:
        DeltaCatalog().describe(str(place))
    assert refused.value.field == "table"
    assert refused.value.remedy
    assert str(place) in str(refused.value)


def test_a_table_whose_log_is_broken_is_a_fault_of_the_storage(uri: str) -> None:
    commit_path(uri, 0).write_text("not json")
    with pytest.raises(StorageError):
        DeltaCatalog().describe(uri)


@pytest.mark.parametrize("feature", ["catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview"])
def test_a_table_whose_commits_a_catalog_manages_is_refused(uri: str, feature: str) -> None:
    path = commit_path(uri, 0)
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    features = {"writerFeatures": [feature], "readerFeatures": [feature]}
    protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}}
    path.write_text("\n".join(json.dumps(protocol if "protocol" in each else each) for each in actions))
    with pytest.raises(InvalidRequest, match="managed by a catalog") as refused:
        DeltaCatalog().describe(uri)
    assert (refused.value.field, "feature" in refused.value.remedy) == ("table", True)


def test_the_newest_version_is_found_without_opening_the_table(uri: str) -> None:
    commit_path(uri, 0).rename(commit_path(uri, 41))
    assert DeltaCatalog().newest_version(uri) == 41


def test_a_table_above_or_below_a_place_is_found(tmp_path: Path) -> None:
    catalog, root = DeltaCatalog(), tmp_path.resolve()
    outer, inner = root / "outer", root / "lake" / "deep" / "inner"
    for each in (outer, inner):
        write_deltalake(str(each), pa.table({"id": [1]}))
    assert catalog.table_around(str(outer / "a" / "b")) == str(outer)
    assert catalog.table_around(str(root / "lake")) == str(inner)
    for free in (outer, inner, root / "lake" / "deep" / "beside", root / "out", root / "lake" / "dee"):
        assert catalog.table_around(str(free)) == ""
    # What a writer that died has left under its own target is no table of anybody's.
    write_deltalake(str(outer / f"{STAGED}-3-abc"), pa.table({"id": [1]}))
    assert catalog.table_around(str(outer)) == ""
    write_deltalake(str(outer / "inside"), pa.table({"id": [1]}))
    assert catalog.table_around(str(outer)) == str(outer / "inside")


def test_an_index_above_or_below_a_place_is_found(tmp_path: Path) -> None:
    catalog, root = DeltaCatalog(), tmp_path.resolve()
    index, table = root / "lake" / "deep" / "index", root / "lake" / "t"
    lance.write_dataset(pa.table({"id": [1]}), str(index))
    (root / "lake" / "deep" / "notes" / "_versions").mkdir(parents=True)  # of something else
    assert catalog.table_around(str(index / "data")) == str(index)
    assert catalog.table_around(str(root / "lake")) == str(index)
    for free in (index, root / "lake" / "deep" / "beside", root / "lake" / "deep" / "notes" / "new"):
        assert catalog.table_around(str(free)) == ""
    write_deltalake(str(table), pa.table({"id": [1]}))
    assert catalog.logs_at(str(index)) == {TargetLog.LANCE}
    assert catalog.logs_at(str(table)) == {TargetLog.DELTA}
    assert catalog.logs_at(str(root / "lake")) == frozenset()
    lance.write_dataset(pa.table({"id": [1]}), str(table))
    assert catalog.logs_at(str(table)) == {TargetLog.DELTA, TargetLog.LANCE}
    lance.write_dataset(pa.table({"id": [1]}), str(root / "old"), enable_v2_manifest_paths=False)
    assert catalog.logs_at(str(root / "old")) == {TargetLog.LANCE}


def test_an_index_is_refused_as_a_table_by_its_name(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "index"))
    with pytest.raises(InvalidRequest, match="index is an index, not a table") as refused:
        DeltaCatalog().describe(str(tmp_path / "index"))
    assert (refused.value.field, refused.value.code) == ("table", ErrorCode.TABLE_UNREADABLE)
    assert "the table that the index follows" in refused.value.remedy


def test_a_search_below_a_place_is_bounded(tmp_path: Path) -> None:
    for number in range(LOOKED_AT_MAX):
        (tmp_path / f"file-{number}").touch()
    write_deltalake(str(tmp_path / "a" / "b"), pa.table({"id": [1]}))
    assert len(list(names_below(str(tmp_path), LOOKED_AT_MAX))) == LOOKED_AT_MAX
    assert DeltaCatalog().table_around(str(tmp_path)) == ""
    for number in range(LOOKED_AT_MAX):
        (tmp_path / f"file-{number}").unlink()
    assert DeltaCatalog().table_around(str(tmp_path.resolve())) == str(tmp_path.resolve() / "a" / "b")


def test_a_log_of_checkpoints_alone_is_refused_by_its_reason(uri: str) -> None:
    DeltaTable(uri).create_checkpoint()
    commit_path(uri, 0).unlink()
    with pytest.raises(InvalidRequest, match="no commit in its log") as refused:
        DeltaCatalog().describe(uri)
    assert (refused.value.field, refused.value.code) == ("table", ErrorCode.TABLE_UNREADABLE)
    assert refused.value.remedy


def test_a_table_that_deltalake_does_not_open_is_opened_by_spark_or_refused_by_its_reason(uri: str) -> None:
    shape = Shape.of(DeltaTable(uri))
    commit_path(uri, 0).write_text('{"protocol":{"minReaderVersion":9,"minWriterVersion":9}}')

    def opens(at: str, version: int) -> Shape:
        assert (at, version) == (uri, 0)
        return shape

    described = DeltaCatalog(by_spark=opens).describe(uri)
    assert (described.table_id, described.schema_json) == (shape.table_id, shape.schema_json)
    assert described.target_fault[0]

    def fails(text: str) -> Callable[[str, int], Shape]:
        def fail(at: str, version: int) -> Shape:
            raise EngineError(f"open {at}: {text}")

        return fail

    for text, why in (
        ('[DELTA_UNSUPPORTED_FEATURES_FOR_READ] … unsupported by Delta Lake "4.3.1": a-b, c.', "feature a-b, c, which"),
        ("[DELTA_INVALID_PROTOCOL_VERSION] …", "a newer protocol"),
        ("[DELTA_STATE_RECOVER_ERROR] The metadata …", "log that cannot be read"),
        ("[DELTA_VERSIONS_NOT_CONTIGUOUS] …", "log that cannot be read"),
        ("[DELTA_UNSUPPORTED_TYPE_CHANGE_IN_SCHEMA] … from TINYINT to DECIMAL(4,1)", r"of a type .* DECIMAL\(4,1\)"),
        ("[DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED] …", "managed by a catalog"),
    ):
        with pytest.raises(InvalidRequest, match=why) as refused:
            DeltaCatalog(by_spark=fails(text)).describe(uri)
        assert refused.value.field == "table"
        assert refused.value.remedy
    with pytest.raises(EngineError):
        DeltaCatalog(by_spark=fails("the heap is full")).describe(uri)
    with pytest.raises(InvalidRequest, match="has no columns"):
        DeltaCatalog(by_spark=lambda *_: replace(shape, schema_json='{"type":"struct","fields":[]}')).describe(uri)


class CountedAnalysis:
    """Refuses every condition, and counts them."""

    def __init__(self) -> None:
        self.conditions: list[str] = []

    def query_shape(self, sql: str, schemas: Mapping[str, str]) -> QueryShape:
        raise AssertionError("no query is described here")

    def condition_fault(self, schema_json: str, condition: str) -> str:
        self.conditions.append(condition)
        return "refused"


def test_plain_conditions_need_no_analysis(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "v": ["x"], "at": pa.array([dt.date(2026, 1, 1)]), "m": [[1]]})
    write_deltalake(f"{tmp_path}/t", rows)
    analysis = CountedAnalysis()
    catalog = DeltaCatalog(analysis=analysis)
    table = catalog.describe(f"{tmp_path}/t")
    for plain in ("ID > 3 AND v <> 'x'", "v IN ('a', 'b') OR id IS NULL", "at >= DATE '2026-01-01'"):
        assert catalog.condition_fault(plain, table) == ""
    others = ["substring(v, 1, 1) = 'x'", "id = 'x'", "m IS NULL", "gone > 1", "current_date() > at"]
    assert [catalog.condition_fault(each, table) for each in others] == ["refused"] * len(others)
    assert analysis.conditions == others
