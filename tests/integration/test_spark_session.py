"""Spark as it is started for a node: its settings, its sessions, and how its JVM ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from iscp.model.values.errors import EngineError
from iscp.spark.java import machine_bundle
from iscp.spark.jvm_launch import LOG_STORE
from iscp.spark.session import SparkRuntime, SparkSettings
from iscp.spark.spark_engine import SparkEngine
from tests import quick_spark
from tests.processes import gone_within

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

# A process of its own for each test that ends its JVM. It runs the given lines with `runtime`, and prints JSON.
CHILD = """
import json, os, pathlib, signal, sys, threading, time
from iscp.spark.session import SparkRuntime, SparkSettings
conf = json.loads(os.environ["TEST_CONF"])
def start(master="local[2]"):
    return SparkRuntime.start(
        SparkSettings(work_dir=pathlib.Path(sys.argv[1]), driver_memory_mb=512, master=master, conf=conf)
    )
def say(**what):
    print(json.dumps(what), flush=True)
def work(runtime):
    runtime.root.range(10**12).selectExpr("sum(sqrt(id))").collect()
def await_work(runtime):
    while not runtime.root.sparkContext.statusTracker().getActiveStageIds():
        time.sleep(0.01)
"""


def child(
    work_dir: Path, program: str, conf: Mapping[str, str] = MappingProxyType({}), **environ: str
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD + program, str(work_dir)]
    variables = os.environ | {"TEST_CONF": json.dumps({**quick_spark.CONF, **conf})} | environ
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)


def said(running: subprocess.Popen[str]) -> dict[str, object]:
    assert running.stdout is not None
    answer: dict[str, object] = json.loads(running.stdout.readline())
    return answer


def test_a_table_is_written_and_read_through_our_log_store(spark_runtime: SparkRuntime, tmp_path: Path) -> None:
    spark = spark_runtime.new_session()
    table = str(tmp_path / "table")
    spark.range(100).write.format("delta").save(table)
    spark.sql(f"MERGE INTO delta.`{table}` t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE")
    assert spark.read.format("delta").load(table).count() == 99
    assert spark.conf.get("spark.delta.logStore.file.impl") == LOG_STORE
    assert sorted(path.name for path in (tmp_path / "table" / "_delta_log").glob("*.json")) == [
        "00000000000000000000.json",
        "00000000000000000001.json",
    ]


def test_sessions_do_not_share_their_settings(spark_runtime: SparkRuntime) -> None:
    one, other = spark_runtime.new_session(), spark_runtime.new_session()
    one.conf.set("spark.databricks.delta.write.txnVersion", "7")
    one.range(1).createOrReplaceTempView("mine")
    assert other.conf.get("spark.databricks.delta.write.txnVersion", None) is None
    assert not other.catalog.tableExists("mine")
    assert one.sparkContext is other.sparkContext


def test_the_jvm_is_alive_and_has_no_interface(spark_runtime: SparkRuntime) -> None:
    assert spark_runtime.alive()
    os.kill(spark_runtime.pid, 0)
    assert spark_runtime.root.sparkContext.uiWebUrl is None
    assert spark_runtime.root.conf.get("spark.sql.session.timeZone") == "UTC"


def test_python_functions_run_in_this_python(spark_runtime: SparkRuntime) -> None:
    from pyspark.sql.functions import udf

    executable = udf(lambda _: sys.executable)
    (row,) = spark_runtime.new_session().range(1).select(executable("id")).collect()
    assert row[0] == sys.executable


def test_the_jvm_trusts_what_the_machine_trusts(spark_runtime: SparkRuntime) -> None:
    bundle = machine_bundle(os.environ)
    if bundle is None:
        return  # then Java's own trust stands, and there is nothing to compare
    gateway: Any = spark_runtime.root.sparkContext._gateway
    jvm = gateway.jvm
    said = jvm.java.lang.System.getProperty
    password = gateway.new_array(jvm.char, len(said("javax.net.ssl.trustStorePassword")))
    for place, character in enumerate(said("javax.net.ssl.trustStorePassword")):
        password[place] = character
    store = jvm.java.security.KeyStore.getInstance(jvm.java.io.File(said("javax.net.ssl.trustStore")), password)
    factory = jvm.javax.net.ssl.TrustManagerFactory.getInstance("PKIX")
    factory.init(store)
    trusted = len(factory.getTrustManagers()[0].getAcceptedIssuers())
    assert trusted >= bundle.read_bytes().count(b"BEGIN CERTIFICATE") * 0.9


def test_kill_9_of_python_leaves_no_java(tmp_path: Path) -> None:
    """Also in the middle of a job, and at once: what it was about to commit must not land."""
    running = child(
        tmp_path,
        """
runtime = start()
threading.Thread(target=work, args=[runtime]).start()
await_work(runtime)
say(pid=runtime.pid)
time.sleep(60)
""",
    )
    pid = said(running)["pid"]
    assert isinstance(pid, int)
    os.kill(pid, 0)
    running.send_signal(signal.SIGKILL)
    assert gone_within(pid, 2)
    running.communicate()


@pytest.mark.slow
def test_a_killed_jvm_frees_who_waits_and_another_can_be_started(tmp_path: Path) -> None:
    running = child(
        tmp_path,
        """
runtime = start()
ended = []
def worker_of(runtime):
    try:
        work(runtime)
    except Exception as fault:
        ended.append(type(fault).__name__)
worker = threading.Thread(target=worker_of, args=[runtime])
worker.start()
await_work(runtime)
began = time.monotonic()
runtime.kill()
worker.join(10)
say(took=time.monotonic() - began, alive=runtime.alive(), ended=ended)
other = start()
say(rows=other.root.range(5).count())
other.stop()
say(alive=other.alive(), left=os.listdir(os.path.join(sys.argv[1], "spark")))
""",
    )
    first, second, third = said(running), said(running), said(running)
    running.communicate(timeout=30)
    assert first["alive"] is False
    assert len(first["ended"]) == 1  # type: ignore[arg-type]
    assert float(str(first["took"])) < 5
    assert second == {"rows": 5}
    assert third == {"alive": False, "left": []}


@pytest.mark.further  # each time: a killed JVM above
def test_rows_that_a_dead_jvm_was_to_keep_are_a_fault_that_passes(tmp_path: Path) -> None:
    running = child(
        tmp_path,
        """
from iscp.spark.spark_frames import cached, release
runtime = start()
rows = runtime.root.range(5)
held = cached(rows)
os.kill(runtime.pid, signal.SIGKILL)
while runtime.alive():
    time.sleep(0.05)
faults = []
for use in (cached, release):
    try:
        use(held if use is release else rows)
    except Exception as fault:
        faults.append([type(fault).__name__, str(fault)])
say(faults=faults)
""",
    )
    faults: Any = said(running)["faults"]
    running.communicate(timeout=30)
    assert [kind for kind, _ in faults] == ["Unavailable", "Unavailable"]
    assert all("JVM does not answer" in text for _, text in faults)


def test_a_spark_that_somebody_else_has_started_is_left_alone(spark_runtime: SparkRuntime, tmp_path: Path) -> None:
    settings = SparkSettings(work_dir=tmp_path, driver_memory_mb=512, conf=quick_spark.CONF)
    with pytest.raises(EngineError, match="there is a SparkContext in this process already") as refused:
        SparkRuntime.start(settings)
    assert "iscp.local(spark)" in refused.value.remedy
    assert spark_runtime.new_session().range(3).count() == 3
    assert [*tmp_path.iterdir()] == []  # no JVM was started for it


@pytest.mark.further  # each time: tests/unit/spark/test_jvm_launch.py
def test_the_user_wins_over_the_files_and_the_files_over_us(tmp_path: Path) -> None:
    conf_dir = tmp_path / "conf"
    conf_dir.mkdir()
    (conf_dir / "spark-defaults.conf").write_text(
        "spark.sql.shuffle.partitions 5\nspark.sql.session.timeZone Asia/Tokyo\n"
    )
    running = child(
        tmp_path / "work",
        """
before = signal.getsignal(signal.SIGINT)
runtime = start()
conf = runtime.root.conf
say(
    partitions=conf.get("spark.sql.shuffle.partitions"),
    zone=conf.get("spark.sql.session.timeZone"),
    snapshot=conf.get("spark.databricks.delta.snapshotPartitions"),
    odd=conf.get("spark.odd"),
    interrupt=signal.getsignal(signal.SIGINT) is before,
)
runtime.stop()
""",
        SPARK_CONF_DIR=str(conf_dir),
        conf={"spark.sql.session.timeZone": "Europe/Paris", "spark.odd": "a=b \\ c: é"},
    )
    assert said(running) == {
        "partitions": "5",
        "zone": "Europe/Paris",
        "snapshot": "1",
        "odd": "a=b \\ c: é",
        "interrupt": True,
    }
    running.communicate(timeout=30)
    assert running.returncode == 0


def test_a_deployments_settings_lose_no_rows_of_files_that_are_gone(spark_runtime: SparkRuntime) -> None:
    def lenient() -> SparkSession:
        session = spark_runtime.new_session()
        for name in ("Missing", "Corrupt"):
            session.conf.set(f"spark.sql.files.ignore{name}Files", "true")
        session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS")
        return session

    with SparkEngine(spark_runtime.root, lenient).session() as session:
        kept = {name: session.conf.get(f"spark.sql.files.ignore{name}Files") for name in ("Missing", "Corrupt")}
        assert kept == {"Missing": "false", "Corrupt": "false"}
        assert session.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
