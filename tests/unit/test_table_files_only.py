"""One way to a file that a tenant may have put there: no other module opens one, or decodes one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

ROOMS = (
    "changefeed",
    "cluster",
    "consumers",
    "delta",
    "engine",
    "index",
    "schedule",
    "spark",
    "standalone",
    "storage",
    "views",
)
"""Rooms whose modules name files of tables."""

OPENING = frozenset(
    {
        "LocalFileSystem",
        "OSFile",
        "ParquetDataset",
        "ParquetFile",
        "dataset",
        "memory_map",
        "open",
        "open_input_file",
        "open_input_stream",
        "read_bytes",
        "read_metadata",
        "read_text",
        "to_pandas",
        "to_pyarrow_dataset",
        "to_pyarrow_table",
    }
)
"""Calls that open a file by its path, or decode one."""

OWN = {
    "delta/joblog": "the job log is the operator's, and lies below no root of an account",
    "delta/selftest": "files that this process has just made",
    "spark": "Java, jars and settings of this installation",
    "index/embedding": "models of this installation",
}

ALLOWED = {
    "storage/table_files.py": {"LocalFileSystem", "open", "open_input_file", "read_bytes"},
    "storage/regular_files.py": {"open"},
    "storage/bounded_parquet.py": {"ParquetFile"},
    "storage/files.py": {"open"},  # a new file, under a name of its own
    "storage/dataset_trial.py": {"dataset", "read_text"},  # in a process that may die; its own notes
    "storage/locations.py": {"read_text"},  # /proc
    "changefeed/table/file_writer.py": {"read_metadata"},  # of an empty file in memory
    "index/lance/lance_access.py": {"dataset"},  # after the guard of datasets
}


def opened_by(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id=name) if name in OPENING:
                yield name, node.lineno
            case ast.Attribute(value=ast.Name(id="pq" | "parquet"), attr="read_table"):
                yield "read_table", node.lineno
            case ast.Attribute(attr="open", value=ast.Name(id="os" | "path" | "file") | ast.Call(func=ast.Name())):
                yield "open", node.lineno
            case ast.Attribute(attr=name) if name in OPENING - {"open"}:
                yield name, node.lineno


def test_no_other_module_opens_a_file_of_a_table() -> None:
    found = []
    for path in (each for room in ROOMS for each in sorted((ROOT / "iscp" / room).rglob("*.py"))):
        name = path.relative_to(ROOT / "iscp").as_posix()
        if not name.startswith(tuple(OWN)):
            found += [f"{name}:{line} {call}" for call, line in opened_by(path) if call not in ALLOWED.get(name, set())]
    assert found == [], "use open_input of table_files, or open_parquet of bounded_parquet"


def test_what_is_allowed_is_there() -> None:
    for name, calls in ALLOWED.items():
        assert {call for call, _ in opened_by(ROOT / "iscp" / name)} >= calls, name
    assert all((ROOT / "iscp" / name).is_dir() for name in OWN)


def test_each_way_of_opening_is_seen(tmp_path: Path) -> None:
    calls = ("pq.ParquetFile(p)", "open(p)", "os.open(p, 0)", "Path(p).read_bytes()", "files.open_input_file(p)")
    (tmp_path / "m.py").write_text("\n".join([*calls, "pq.read_table(p)", "path.open()", "table.to_pyarrow_dataset()"]))
    assert [line for _, line in sorted(opened_by(tmp_path / "m.py"), key=lambda each: each[1])] == [*range(1, 9)]
