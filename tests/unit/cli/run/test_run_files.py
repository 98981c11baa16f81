"""The files of a run: what of a project is left out is said there too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iscp.cli.run.run_files import read_run_files


@pytest.mark.parametrize("quiet", [False, True])
def test_what_of_a_project_is_left_out_or_rewritten_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    common = {"resource_type": "model", "config": {"meta": {"iscp": True}}}
    nodes = {
        "a": {**common, "name": "whole", "compiled_code": 'SELECT a FROM "memory"."main"."orders"'},
        "b": {**common, "name": "odd", "compiled_code": "SELECT FROM WHERE"},
    }
    (tmp_path / "manifest.json").write_text(json.dumps({"metadata": {"adapter_type": "duckdb"}, "nodes": nodes}))
    (job,) = read_run_files([str(tmp_path)], {"memory.main.orders": "/lake/orders"}, "/x", "default", quiet=quiet)
    assert (job.request.job.table, job.request.job.name) == ("/lake/orders", "whole")
    said = capsys.readouterr().err
    for words in (
        "odd it cannot be written as Spark takes it",
        "the queries are written for Spark, from those for duckdb",
    ):
        assert (words in said) is not quiet
