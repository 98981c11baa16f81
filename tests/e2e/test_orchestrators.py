"""The examples for other tools, each run by the tool itself, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.cli.demo.lake import read
from tests import quick_spark
from tests.environments import environment

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ORCHESTRATORS = EXAMPLES / "orchestrators"
TIMEOUT_S = 250.0
WAIT_S = 100.0
POLL_S = 0.5
JOBS = """
- {{table: {lake}/orders, name: orders_copy, target: {lake}/orders_copy, key: [id]}}
- {{table: {lake}/orders_copy, name: open_orders, target: {lake}/open_orders, key: [id], where: not paid}}
"""


class Shop:
    """Tables of a shop, with a command `iscp` as another environment has it."""

    def __init__(self, root: Path) -> None:
        self.lake, self.orders = str(root), f"{root}/orders"
        self.iscp = root / "iscp"
        self.iscp.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m iscp.cli.iscp "$@"\n')
        self.iscp.chmod(0o755)
        self.add(range(3))
        (root / "jobs.yaml").write_text(JOBS.format(lake=root))

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return kept | {"LAKE": self.lake, "ISCP": str(self.iscp), "DO_NOT_TRACK": "1"}

    def add(self, ids: range) -> None:
        columns = {
            "id": list(ids),
            "customer": [f"c{each % 2}" for each in ids],
            "total": [60 + each for each in ids],
            "paid": [each % 5 != 4 for each in ids],
        }
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(self.orders, pa.table(columns), mode="append", configuration=feed)

    def run(self, *command: str | Path, more: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
        ended = subprocess.run(
            [str(each) for each in command],
            env={**self.environ, **(more or {})},
            cwd=cwd or self.lake,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
        return ended.stdout

    def rows(self, name: str, by: str = "id") -> list[dict[str, Any]]:
        table = read(f"{self.lake}/{name}")
        return sorted(table.to_pylist(), key=lambda row: str(row[by]))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    root = tmp_path / "lake"
    root.mkdir()
    return Shop(root)


@pytest.mark.spark
@pytest.mark.slow
def test_the_notebook_without_a_cluster_runs(tmp_path: Path) -> None:
    """Its cells, without Jupyter, in a process of their own: other tests may have a Spark in this one."""
    run = (
        "import json, pathlib, sys; from tests.notebook import run_notebook\n"
        "made = run_notebook(pathlib.Path(sys.argv[1]), {'LAKE': sys.argv[2]})\n"
        "print(json.dumps([made['equal'], [each.rows for each in made['refreshed']]]))\n"
    )
    command = [sys.executable, "-c", run, str(EXAMPLES / "local.ipynb"), str(tmp_path)]
    environ = os.environ | quick_spark.VARIABLES
    done = subprocess.run(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [[True, True], [2, 2]]
    assert sorted(row["total"] for row in read(f"{tmp_path}/totals").to_pylist()) == [10, 30, 135]


@pytest.mark.spark
@pytest.mark.further  # each time: the cells without Jupyter, above
def test_the_notebook_without_a_cluster_runs_in_jupyter(shop: Shop) -> None:
    """Jupyter and its kernel are in their own environment, in which what iscp needs can be imported too."""
    programs = environment("notebook")
    site = next(each for each in sys.path if each.endswith("site-packages"))
    run = (
        "import os, nbformat, nbclient\n"
        f"notebook = nbformat.read({str(EXAMPLES / 'local.ipynb')!r}, 4)\n"
        "nbclient.NotebookClient(notebook, timeout=200, kernel_name='python3').execute()\n"
        "print('\\n'.join(o.get('text', '') for c in notebook.cells for o in c.get('outputs', ())))\n"
    )
    # Behind its own packages: the kernel's come first.
    (programs.parent / f"lib/python3.{sys.version_info[1]}/site-packages/iscp-needs.pth").write_text(site)
    said = shop.run(programs / "python", "-c", run, more={"PYTHONPATH": str(ROOT)})
    assert "[True, True]" in said


@pytest.mark.spark
@pytest.mark.full  # each time: tests of a manifest's models, in tests/unit/cli/view and tests/e2e
def test_models_of_dbt_are_kept_after_dbt_has_run(shop: Shop) -> None:
    dbt, target, derived = environment("dbt") / "dbt", Path(shop.lake, "target"), Path(shop.lake, "derived")
    derived.mkdir()

    def run() -> dict[str, Any]:
        shop.run(dbt, "run", "--profiles-dir", ".", "--target-path", target, "--log-path", f"{shop.lake}/logs",
                 cwd=ORCHESTRATORS / "dbt")  # fmt: skip
        options = ("--table", f"orders={shop.orders}", "--target-root", str(derived), "--output", "json")
        said = shop.run(shop.iscp, "run", target / "manifest.json", *options)
        return {each["name"]: each for each in map(json.loads, said.splitlines())}

    assert run().keys() == {"customer_totals", "best_customers"}
    shop.add(range(3, 6))
    assert {each["state"] for each in run().values()} == {"updated"}
    assert shop.rows("derived/customer_totals", "customer") == [
        {"customer": "c0", "total": 60 + 62, "orders": 2},
        {"customer": "c1", "total": 61 + 63 + 65, "orders": 3},
    ]
    assert [row["customer"] for row in shop.rows("derived/best_customers", "customer")] == ["c0", "c1"]
    assert not (derived / "paid_orders").exists()


@pytest.mark.full  # each time: `iscp run` itself, in tests/e2e
def test_a_dag_of_airflow_runs_jobs_and_another_waits_for_a_version(shop: Shop, tmp_path: Path) -> None:
    airflow = environment("airflow") / "airflow"
    folders = {"DAGS_FOLDER": "dags", "PLUGINS_FOLDER": "plugins"}
    own = {f"AIRFLOW__CORE__{name}": str(ORCHESTRATORS / "airflow" / each) for name, each in folders.items()}
    own |= {"AIRFLOW_HOME": str(tmp_path / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    shop.run(airflow, "db", "migrate", more=own)
    shop.run(airflow, "dags", "test", "keep_fresh", more=own)
    assert shop.rows("orders_copy") == shop.rows("orders")

    shop.add(range(3, 6))
    wanted = DeltaTable(shop.orders).version()
    with (tmp_path / "report.log").open("w") as log:
        command = [str(airflow), "dags", "test", "report", "--conf", json.dumps({"version": wanted})]
        waiting = subprocess.Popen(command, env=shop.environ | own, cwd=shop.lake, stdout=log, stderr=log)
    try:
        said, ends_at_s = tmp_path / "report.log", time.monotonic() + WAIT_S
        while "defer" not in said.read_text().casefold():
            assert waiting.poll() is None, said.read_text()[-3000:]
            assert time.monotonic() < ends_at_s
            time.sleep(POLL_S)
        assert "is in the copy" not in said.read_text()
        shop.run(shop.iscp, "run", f"{shop.lake}/jobs.yaml")
        assert waiting.wait(WAIT_S) == 0
        assert f"version {wanted} is in the copy" in said.read_text()
    finally:
        waiting.kill()
        waiting.wait()


@pytest.mark.full  # each time: `iscp run` itself, in tests/e2e
def test_assets_of_dagster_are_kept_and_have_their_freshness(shop: Shop) -> None:
    python = environment("dagster") / "python"
    run = (
        "import json, sys\n"
        f"sys.path.insert(0, {str(ORCHESTRATORS / 'dagster')!r})\n"
        "import dagster, definitions\n"
        "made = dagster.materialize(definitions.defs.assets)\n"
        "found = {each.asset_key.path[-1]: {name: value.value for name, value in\n"
        "         each.materialization.metadata.items()} for each in made.get_asset_materialization_events()}\n"
        "graph = definitions.defs.resolve_asset_graph()\n"
        "fresh = {key.path[-1]: str(graph.get(key).freshness_policy) for key in graph.materializable_asset_keys}\n"
        "print('FOUND', json.dumps([made.success, found, fresh]))\n"
    )

    def materialize() -> list[Any]:
        said = shop.run(python, "-c", run)
        found: list[Any] = json.loads(said.partition("FOUND ")[2])
        return found

    success, first, fresh = materialize()
    assert success
    assert {name: each["state"] for name, each in first.items()} == dict.fromkeys(fresh, "updated")
    assert fresh.keys() == {"orders_copy", "open_orders"}
    assert all("fail_window" in policy for policy in fresh.values())
    assert {each["state"] for each in materialize()[1].values()} == {"current"}
    shop.add(range(3, 6))
    assert materialize()[1]["open_orders"]["rows"] == 1
    assert [row["id"] for row in shop.rows("open_orders")] == [4]
