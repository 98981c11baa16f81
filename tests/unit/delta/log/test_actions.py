"""Commit files by other writers, and damaged ones: each is parsed, or refused by an error that names the file."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.delta.log.actions import CommitBounds, find_unclear, parse_actions, statistics_of
from iscp.delta.log.commits import APP_ID, read_added_files, read_changed_files, read_commit, statistics_added
from iscp.delta.rows.row_keys import TableKeys
from iscp.delta.source.arrow_read import NotDirectError, Shape, read_changes
from iscp.model.values.errors import StorageError
from iscp.ports.source import ChangesUnavailableError
from iscp.storage.bounded_parquet import Allowance
from tests.fakes.commit_files import commit_path
from tests.fakes.heartbeat import Heartbeat

FEED = {"delta.enableChangeDataFeed": "true"}
ADD = {"path": "a", "size": 1, "dataChange": True, "partitionValues": {}}

texts = st.text(alphabet=st.characters(exclude_categories=()), max_size=6)  # halves of characters too
numbers = st.integers() | st.floats() | st.sampled_from([0, -1, 2**63, 10**400, 1e999])
anything = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of which version 1 is overwritten again and again; it adds the ids 3 and 4, and removes all before."""
    uri = str(tmp_path_factory.mktemp("lake") / "table")
    first = pa.table({"id": [1, 2], "p": ["a", "b"]})
    write_deltalake(uri, first, partition_by=["p"], configuration=FEED)
    write_deltalake(uri, pa.table({"id": [3, 4], "p": ["a", None]}), mode="overwrite")
    return uri


@pytest.fixture(scope="module")
def actions(uri: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in commit_path(uri, 1).read_text().splitlines()]
    return [{"txn": {"appId": APP_ID, "version": 4}}, *found]


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Each (object or list, key or index) in it."""
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in list(keys):
        yield tree, key
        yield from places(tree[key])


def all_readers(uri: str) -> list[Callable[[], object]]:
    return [
        lambda: read_commit(uri, 1),
        lambda: statistics_added(uri, 1),
        lambda: read_added_files(uri, 1),
        lambda: read_changed_files(uri, 1),
    ]


def read_all(uri: str, shape: Shape) -> list[dict[str, object]] | None:
    """The changes; None: they are for Spark to read. Every other reader is tried as well."""
    for reader in all_readers(uri):
        try:
            assert reader() is not None
        except StorageError as error:
            assert str(commit_path(uri, 1)) in str(error)  # noqa: PT017
    try:
        commit = read_changed_files(uri, 1)
        assert commit is not None
        rows = read_changes(uri, [commit], shape, ["id", "p"], True, Allowance(1_000_000))
    except (StorageError, NotDirectError, ChangesUnavailableError):
        return None
    return sorted(rows.drop_columns("_commit_timestamp").to_pylist(), key=str)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_json_in_any_place_is_read_or_refused_by_name(
    uri: str, actions: list[dict[str, Any]], data: st.DataObject
) -> None:
    shape = Shape.of(DeltaTable(uri, version=0))
    path = commit_path(uri, 1)
    path.write_text("\n".join(map(json.dumps, actions)))
    right = read_all(uri, shape)
    assert right is not None
    assert len(right) == 4
    changed = copy.deepcopy(actions)
    for _ in range(data.draw(st.integers(1, 3))):
        at, key = data.draw(st.sampled_from(list(places(changed))))
        at[key] = data.draw(anything)
    path.write_text("\n".join(map(json.dumps, changed)))
    found = read_all(uri, shape)
    files = [[each for action in which for each in _data_files(action)] for which in (actions, changed)]
    if found is not None and files[0] == files[1] and _merges(changed) == _merges(actions):
        assert found == right


def _data_files(action: Any) -> Iterator[object]:
    for kind in ("add", "remove", "cdc"):
        if isinstance(action, dict) and isinstance(body := action.get(kind), dict):
            yield kind, body.get("path"), body.get("dataChange"), body.get("partitionValues")


def _merges(actions: list[Any]) -> list[object]:
    about = [action.get("commitInfo") for action in actions if isinstance(action, dict)]
    return [each.get("operation") == "MERGE" for each in about if isinstance(each, dict)]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_bytes_are_read_or_refused_by_name(
    uri: str, actions: list[dict[str, Any]], data: st.DataObject
) -> None:
    content = "\n".join(map(json.dumps, actions)).encode()
    at = data.draw(st.integers(0, len(content)))
    put = data.draw(st.sampled_from([b"", b"\0" * 8, b"\xef\xbb\xbf", b"\xff", b"\n", b"{", b"null\n", b"[" * 9_999]))
    tail = content[at:] if data.draw(st.booleans()) else b""
    commit_path(uri, 1).write_bytes(content[:at] + put + tail)
    read_all(uri, Shape.of(DeltaTable(uri, version=0)))


@pytest.mark.parametrize(
    "content",
    [
        '{"add":%s}\n\n  \n{"txn":{"appId":"iscp","version":1}}\n',
        '{"add":%s}\r\n{"txn":{"appId":"iscp","version":1}}\r\n',
        '  {"add":%s}  \n\t{"txn":{"appId":"iscp","version":1}}  ',
        '{"add":%s,"remove":null}\n{"commitInfo":null}\n{"future":{"a":1}}\n{"txn":{"appId":"iscp","version":1}}',
    ],
)
def test_what_every_engine_reads_is_read(content: str) -> None:
    found = parse_actions((content % json.dumps(ADD)).encode(), "/t/0.json")
    known = [action for action in found if action and "future" not in action]
    assert known == [{"add": ADD}, {"txn": {"appId": "iscp", "version": 1}}]
    assert bool(find_unclear(found)) is ("future" in content), "it is not passed over"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"add":%s}{"add":%s}', "is not JSON"),  # Spark takes the first one alone, delta-rs both
        ('{"add":%s} {"add":%s}', "is not JSON"),
        ('{"add":%s,"remove":%s}', "more than one action"),
        ('\ufeff{"add":%s}', "is not JSON"),
        ('{"add":%s}\n{"add":', "line 2"),
        ('{"add":%s}\n\0\0\0', "line 2"),
        ('{"add":%s}\nnull', "is not a JSON object"),
        ('{"add":[%s]}', "an action add that is not an object"),
        ('{"add":{"size":1}}', "without a path"),
        ('{"add":{"path":"a%%00b"}}', "without a path"),
        ('{"add":{"path":"\\ud800"}}', "is not UTF-8"),
        ('{"add":{"path":"a","size":"1"}}', "size"),
        ('{"add":{"path":"a","size":true}}', "size"),
        ('{"cdc":{"path":"a","size":-1}}', "size"),
        ('{"remove":{"path":"a","dataChange":"false"}}', "dataChange"),
        ('{"add":{"path":"a","partitionValues":[]}}\n{"add":{"path":"a","partitionValues":[1]}}', "line 2"),
    ],
)
def test_what_engines_read_otherwise_or_not_at_all_is_refused_with_file_and_line(content: str, why: str) -> None:
    file = json.dumps(ADD)
    with pytest.raises(StorageError, match=r"/t/0\.json, line") as refused:
        parse_actions((content % tuple([file] * content.count("%s"))).encode(), "/t/0.json")
    assert why in str(refused.value)
    assert refused.value.remedy


@pytest.mark.parametrize("content", [b"", b"\n", b" \r\n \n"])
def test_a_commit_with_nothing_in_it_is_none_without_actions(content: bytes) -> None:
    with pytest.raises(StorageError, match=r"/t/0\.json, is empty"):
        parse_actions(content, "/t/0.json")


def test_a_log_whose_commit_cannot_be_read_is_named(uri: str) -> None:
    commit_path(uri, 1).write_text('{"add":')
    for reader in all_readers(uri):
        with pytest.raises(StorageError, match=str(commit_path(uri, 1))):
            reader()


@pytest.mark.parametrize("stats", ["null", "[]", "5", '"x"', "{", "", None, 7, {"numRecords": 1}, "[" * 9_999, "NaN"])
def test_statistics_that_are_none_are_absent(stats: object) -> None:
    assert statistics_of({"stats": stats}) == {}


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_statistics_of_the_wrong_shape_hide_a_file_that_holds_a_key(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any part of the statistics is replaced; only wrong bounds of the right type cannot be detected."""
    uri = str(tmp_path_factory.mktemp("lake") / "table")
    write_deltalake(uri, pa.table({"id": [10, 20], "name": ["m", "p"]}))
    held = TableKeys(uri)
    assert held.lack({"id": (30, 40)}, 0)
    assert held.lack({"name": ("x", "z")}, 0)
    stats = {
        "numRecords": 1,
        "minValues": {"id": 35, "name": "y"},
        "maxValues": {"id": 35, "name": "y"},
        "nullCount": {"id": 0, "name": 0},
    }
    name = data.draw(st.sampled_from(["id", "name"]))
    at, key = data.draw(st.sampled_from([each for each in places(stats) if each[1] in (name, *stats)]))
    right = type(at[key])
    at[key] = data.draw(anything.filter(lambda value: type(value) is not right))
    add = {**ADD, "stats": json.dumps(stats)}
    commit_path(uri, 1).write_text(json.dumps({"add": add}))
    assert not held.lack({name: (30, 40) if name == "id" else ("x", "z")}, 1)


def test_a_greatest_text_that_may_have_been_cut_is_no_end(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    write_deltalake(uri, pa.table({"name": ["m"]}))
    held = TableKeys(uri)
    assert held.lack({"name": ("x", "z")}, 0)
    stats = {
        "numRecords": 1,
        "minValues": {"name": "x" * 32},
        "maxValues": {"name": "x" * 32},
        "nullCount": {"name": 0},
    }
    commit_path(uri, 1).write_text(json.dumps({"add": {**ADD, "stats": json.dumps(stats)}}))
    assert not held.lack({"name": ("x" * 33, "x" * 40)}, 1)
    assert held.lack({"name": ("xy", "z")}, 1)


@pytest.mark.parametrize(
    ("bounds", "content", "why"),
    [
        (CommitBounds(line_bytes=50), b'{"commitInfo":{"a":"' + b"x" * 100 + b'"}}', "line 1, has more than 50 bytes"),
        (CommitBounds(lines=50), b"{}\n" * 60, "has more than 50 lines"),
        (CommitBounds(lines=50), b"{}\r" * 60, "has more than 50 lines"),
        (CommitBounds(values=50), b'{"commitInfo":{"a":[' + b"{}," * 12 + b"{}]}}", "has more than 50 values"),
    ],
)
def test_a_commit_that_takes_too_long_or_too_much_is_refused_by_its_name(
    bounds: CommitBounds, content: bytes, why: str
) -> None:
    parse_actions(content, "/t/_delta_log/3.json")
    with pytest.raises(StorageError, match=why):
        parse_actions(content, "/t/_delta_log/3.json", bounds=bounds)


def test_lines_end_as_they_did() -> None:
    ends = (b"\n", b"\r\n", b"\r", b"\n\n", b"\r\r\n")
    content = b"".join(json.dumps({"add": {"path": str(each)}}).encode() + end for each, end in enumerate(ends))
    assert [each["add"]["path"] for each in parse_actions(content, "x")] == ["0", "1", "2", "3", "4"]


def test_other_threads_go_on_while_a_commit_is_parsed() -> None:
    """A lease is renewed between two lines at the latest, and a line is bounded."""
    tags = ",".join(f'"key{number}":"v"' for number in range(60_000))
    content = (f'{{"add":{{"path":"a","tags":{{{tags}}}}}}}\n' * 16).encode()
    with Heartbeat() as beat:
        assert len(parse_actions(content, "x")) == 16
    assert beat.longest_s < beat.took_s / 2
