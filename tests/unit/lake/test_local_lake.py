"""Proves that what a program gives wrongly is refused by name before anything is begun."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import iscp
from iscp.lake.local_lake import Lake
from iscp.model.run.run_plan import PARALLEL_MAX
from iscp.model.values.errors import InvalidRequest


@pytest.fixture
def lake() -> Iterator[Lake]:
    with iscp.local() as made:
        yield made


@pytest.mark.parametrize("parallel", [0, -1, PARALLEL_MAX + 1])
def test_a_number_of_tables_at_once_that_cannot_be_is_refused(lake: Lake, parallel: int) -> None:
    with pytest.raises(InvalidRequest, match=f"parallel is {parallel}. Write a number from 1 to {PARALLEL_MAX}"):
        lake.run("jobs.yaml", parallel=parallel)


def test_a_text_is_not_taken_for_a_list_of_its_letters(lake: Lake) -> None:
    with pytest.raises(InvalidRequest, match="key is the text 'id'"):
        lake.replica("/t", "/copy", key="id")
    with pytest.raises(InvalidRequest, match="columns is the text 'id'"):
        lake.replica("/t", "/copy", columns="id")
    with pytest.raises(InvalidRequest, match="select is the text 'copy'"):
        lake.run("jobs.yaml", select="copy")
    with pytest.raises(InvalidRequest, match="exclude is the text 'copy'"):
        lake.forecast("jobs.yaml", exclude="copy")


def test_a_run_of_no_file_is_refused(lake: Lake) -> None:
    with pytest.raises(InvalidRequest, match="files are not given"):
        lake.run()
    with pytest.raises(InvalidRequest, match="files are not given"):
        lake.forecast()


def test_a_closed_lake_refuses_whatever_is_wanted_of_it(tmp_path: Path) -> None:
    write_deltalake(f"{tmp_path}/orders", pa.table({"id": [1, 2]}))
    with iscp.local() as lake:
        copy = lake.replica(f"{tmp_path}/orders", f"{tmp_path}/copy", key=["id"])
        assert copy.refresh().ok
    (tmp_path / "jobs.yaml").write_text(f"{{table: {tmp_path}/orders, name: a, target: {tmp_path}/a, key: [id]}}")
    wanted: list[Callable[[], object]] = [
        copy.refresh,
        copy.forecast,
        copy.verify,
        copy.explain,
        lambda: lake.run(tmp_path / "jobs.yaml"),
        lambda: lake.forecast(tmp_path / "jobs.yaml"),
    ]
    for each in wanted:
        with pytest.raises(InvalidRequest, match=r"lake is closed\. Use it before"):
            each()
    lake.close()  # again does no harm


PROGRAM = """
import os, sys
import iscp
from deltalake import DeltaTable
from iscp.model.values.errors import IscpError

root, before = sys.argv[1:]
lake = iscp.local()
copy = lake.replica(f"{root}/orders", f"{root}/copy", key=["id"])
if before == "iscp":
    copy.refresh()
if before == "deltalake":
    DeltaTable(f"{root}/orders").to_pyarrow_table()
if not (child := os.fork()):
    for job in (copy, iscp.local().replica(f"{root}/orders", f"{root}/copy", key=["id"])):
        try:
            print(job.refresh().state)
        except IscpError as error:
            print(error)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("iscp", ["lake cannot be used in the process"] * 2),
        ("deltalake", ["lake cannot be used in the process"] * 2),
        ("nothing", ["updated", "current"]),
    ],
)
def test_a_fork_of_a_process_that_has_read_tables_is_refused_by_name(
    tmp_path: Path, before: str, said: list[str]
) -> None:
    write_deltalake(f"{tmp_path}/orders", pa.table({"id": [1, 2]}))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), before]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    lines = ended.stdout.splitlines()
    assert len(lines) == len(said), ended.stdout + ended.stderr
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True)), ended.stdout
