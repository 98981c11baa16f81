"""The JVM's command line and settings.

What a JVM prints becomes events of this process's log, whatever it is.



When an archive of the JVM's classes is used, and which archives are kept.

Spark's own ports: on the loopback interface, or with its authentication and encryption on.

A child process ends with its parent, whatever ends that; tested with a child that is no JVM.
"""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from iscp.model.values.errors import Canceled, ConfigurationError, EngineError
from iscp.notices.log_ring import JsonFormatter
from iscp.ports.engine import HeapSize
from iscp.spark import jvm_launch
from iscp.spark.java import Java
from iscp.spark.jvm_launch import (
    ARCHIVES_MAX,
    LINE_LENGTH_MAX,
    READ_S,
    ClassArchive,
    Gateway,
    JvmHeap,
    SparkSettings,
    default_cache_dir,
    default_conf,
    java_command,
    java_environ,
    network_conf,
    properties_file,
    refuse_open_ports,
    relay_output,
    spark_defaults,
    stays_here,
    write_properties,
)
from tests.fakes.waiting import until
from tests.processes import gone_within


def command(settings: SparkSettings, environ: dict[str, str]) -> list[str]:
    return java_command(Path("/java"), settings, [Path("/a.jar"), Path("/b.jar")], ["-option"], environ)


def test_the_cache_is_where_the_environment_says() -> None:
    assert default_cache_dir({"ISCP_CACHE": "/c", "XDG_CACHE_HOME": "/x"}) == Path("/c")
    assert default_cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/iscp")
    assert default_cache_dir({}) == Path.home() / ".cache" / "iscp"


def test_what_the_user_set_is_not_on_the_command_line(tmp_path: Path) -> None:
    settings = SparkSettings(work_dir=tmp_path, conf={"spark.hadoop.fs.s3a.secret.key": "hush"})
    assert not any("hush" in word for word in command(settings, {}))


def test_properties_are_escaped_and_private(tmp_path: Path) -> None:
    settings = SparkSettings(work_dir=tmp_path, master="local[3]", conf={"spark.a": " b\\c\n=d: é"})
    settings.scratch_dir.mkdir()
    write_properties(settings)
    file = properties_file(settings)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = file.read_text(encoding="utf-8").splitlines()
    assert r"spark.a=\ b\\c\u000a\=d\:\ é" in lines
    assert "spark.master=local[3]" in lines


def test_driver_settings_are_read_where_sparks_launcher_would(tmp_path: Path) -> None:
    conf_dir = tmp_path / "conf"
    conf_dir.mkdir()
    (conf_dir / "spark-defaults.conf").write_text(
        "# ours\nspark.driver.memory   3g\nspark.driver.extraJavaOptions=-Da='b c' -Dd=e\n"
    )
    environ = {"SPARK_CONF_DIR": str(conf_dir)}
    assert spark_defaults([conf_dir])["spark.driver.memory"] == "3g"
    words = command(SparkSettings(work_dir=tmp_path), environ)
    assert "-Xmx3g" in words
    assert "-Da=b c" in words
    assert words[2] == os.pathsep.join(["/a.jar", "/b.jar", str(conf_dir)])
    mine = SparkSettings(work_dir=tmp_path, conf={"spark.driver.memory": "5g", "spark.driver.extraClassPath": "/x"})
    words = command(mine, environ)
    assert "-Xmx5g" in words
    assert words[2].startswith("/x:/a.jar")


def test_memory_is_the_settings_where_nobody_says_otherwise(tmp_path: Path) -> None:
    assert "-Xmx777m" in command(SparkSettings(work_dir=tmp_path, driver_memory_mb=777), {})


def test_log4j_is_quiet_unless_configured(tmp_path: Path) -> None:
    def configured(environ: dict[str, str]) -> bool:
        words = command(SparkSettings(work_dir=tmp_path), environ)
        return any("-Dlog4j2.configurationFile" in w for w in words)

    assert configured({})
    (tmp_path / "log4j2.properties").write_text("")
    assert not configured({"SPARK_CONF_DIR": str(tmp_path)})


def test_a_foreign_spark_home_gives_its_configuration_only(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    environ = java_environ(SparkSettings(work_dir=tmp_path), {"SPARK_HOME": str(tmp_path)})
    assert environ["SPARK_HOME"].endswith("pyspark")
    assert environ["SPARK_CONF_DIR"] == str(tmp_path / "conf")


def test_executors_elsewhere_can_reach_the_driver(tmp_path: Path) -> None:
    here = SparkSettings(work_dir=tmp_path)
    elsewhere = SparkSettings(work_dir=tmp_path, master="spark://host:7077")
    assert default_conf(here)["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in default_conf(elsewhere)
    assert "SPARK_LOCAL_IP" not in java_environ(elsewhere, {})
    keys = {"AWS_ACCESS_KEY_ID": "who", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_SESSION_TOKEN": "now"}
    assert not keys.keys() & java_environ(elsewhere, keys).keys(), "they come by Spark's settings, not twice"


EVENT = {"level": "ERROR", "class": "TaskSetManager", "said": 'Task "1" failed', "stack": "java.lang.X\n\tat y"}


def relayed(*lines: str) -> list[dict[str, str]]:
    """What is in a log of JSON lines after a JVM has printed these."""
    stream, logger = io.StringIO(), logging.getLogger("spark")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter({"node": "n-1"}))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        writer, thread = relay_output()
        os.write(writer, "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"))
        os.close(writer)
        thread.join(10)
        assert not thread.is_alive()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_of_the_jvm_is_one_of_the_log() -> None:
    (line,) = relayed(json.dumps(EVENT))
    assert (line["event"], line["level"], line["node"]) == ("spark.said", "error", "n-1")
    assert (line["class"], line["said"], line["stack"]) == ("TaskSetManager", 'Task "1" failed', "java.lang.X\n\tat y")


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: Using incubator modules",
        "\tat java.base/x",
        "{",
        "[1]",
        "7",
        "null",
        '{"level":"WARN"}',
        "\udcff\udcfe",
        "[" * 5_000,
        "x" * 2 * LINE_LENGTH_MAX,
    ],
)
def test_whatever_else_it_prints_is_a_line_too(line: str) -> None:
    (found,) = relayed(line)
    assert (found["event"], found["level"]) == ("spark.said", "warning")
    assert 0 < len(found["said"]) <= LINE_LENGTH_MAX


def test_blank_lines_are_nothing() -> None:
    assert relayed("", "  ") == []


def test_the_jvm_has_the_option_to_print_what_is_read_here() -> None:
    text = Path(jvm_launch.__file__).with_name("log4j2.properties").read_text()
    (pattern,) = [line.partition(" = ")[2] for line in text.splitlines() if "layout.pattern" in line]
    for placed, value in (("%p", "ERROR"), ("%c{1}", "X"), ("%enc{%m}{JSON}", "m"), ("%enc{%ex{5}}{JSON}", "")):
        assert placed in pattern
        pattern = pattern.replace(placed, value)
    assert json.loads(pattern.removesuffix("%n")) == {"level": "ERROR", "class": "X", "said": "m", "stack": ""}


class FakeUsage:
    """What a JVM says of its heap, once it answers."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.questions = 0
        self.ended = False

    def getUsed(self) -> int:  # noqa: N802  (Java's name)
        self.questions += 1
        assert self.answers.wait(30.0)
        if self.ended:
            raise Py4JNetworkError("the JVM has ended")
        return 10

    def getMax(self) -> int:  # noqa: N802
        return 100


def root(usage: FakeUsage) -> Any:
    bean = SimpleNamespace(getHeapMemoryUsage=lambda: usage)
    management = SimpleNamespace(ManagementFactory=SimpleNamespace(getMemoryMXBean=lambda: bean))
    java = SimpleNamespace(lang=SimpleNamespace(management=management))
    return SimpleNamespace(sparkContext=SimpleNamespace(_jvm=SimpleNamespace(java=java)))


def test_the_size_is_the_jvms() -> None:
    usage = FakeUsage()
    usage.answers.set()
    heap = JvmHeap(root(usage))
    assert heap.size() == HeapSize(10, 100)
    heap.close()


def test_a_jvm_that_hangs_is_waited_for_briefly_and_questioned_once() -> None:
    usage = FakeUsage()
    heap, began_s = JvmHeap(root(usage)), time.monotonic()
    assert heap.size() is None
    assert heap.size() is None
    assert usage.questions == 1
    assert time.monotonic() - began_s >= 2 * READ_S - 0.1
    usage.answers.set()
    until(lambda: heap.size() == HeapSize(10, 100))
    heap.close()


def test_a_jvm_that_has_ended_has_no_size() -> None:
    usage = FakeUsage()
    usage.ended = True
    usage.answers.set()
    heap = JvmHeap(root(usage))
    assert heap.size() is None
    heap.close()


JAVA = Java(Path("/java"), 17, "Maker 17.0.15+1")


def jar(directory: Path, content: str = "x", time_s: int = 1_000_000) -> Path:
    path = directory / "a.jar"
    path.write_text(content)
    os.utime(path, (time_s, time_s))
    return path


def test_another_java_or_jar_requires_another_archive(tmp_path: Path) -> None:
    first = ClassArchive(tmp_path, JAVA, [jar(tmp_path)]).path
    assert ClassArchive(tmp_path, JAVA, [jar(tmp_path)]).path == first
    assert ClassArchive(tmp_path, Java(JAVA.home, 17, "Maker 17.0.16+1"), [jar(tmp_path)]).path != first
    assert ClassArchive(tmp_path, JAVA, [jar(tmp_path, content="xy")]).path != first
    assert ClassArchive(tmp_path, JAVA, [jar(tmp_path, time_s=2_000_000)]).path != first


def test_nothing_is_mapped_before_it_is_made(tmp_path: Path) -> None:
    assert ClassArchive(tmp_path, JAVA, []).options() == []


def test_a_made_archive_is_mapped_on_top_of_javas_own(tmp_path: Path) -> None:
    home = tmp_path / "java"
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").touch()
    bare = ClassArchive(tmp_path, JAVA, [])
    whole = ClassArchive(tmp_path, Java(home, 17, "Maker"), [])
    for archive in (bare, whole):
        made = tmp_path / "made"
        made.touch()
        archive.publish(made)
    assert whole.options()[0] == f"-XX:SharedArchiveFile={whole.path}"
    base, top = bare.options()[0].removeprefix("-XX:SharedArchiveFile=").split(":")
    assert top == str(bare.path)
    assert Path(base).parent == tmp_path


def test_only_the_latest_archives_are_kept(tmp_path: Path) -> None:
    for age in range(ARCHIVES_MAX + 2):
        old = tmp_path / f"classes-{age}.jsa"
        old.touch()
        os.utime(old, (1_000 - age, 1_000 - age))
    made = tmp_path / "made"
    made.touch()
    archive = ClassArchive(tmp_path, JAVA, [])
    archive.publish(made)
    kept = sorted(path.name for path in tmp_path.glob("classes-*.jsa") if path != archive.path)
    assert archive.path.exists()
    assert kept == [f"classes-{age}.jsa" for age in range(ARCHIVES_MAX)]


SECRET = {"spark.authenticate.secret": "s"}
FAR = "spark://m1:7077,m2:7077"


def test_masters_here_bind_to_loopback() -> None:
    for master in ("local", "local[*]", "local-cluster[2,1,1024]", "spark://127.0.0.1:7077", "spark://localhost:1"):
        assert stays_here(master)
        assert network_conf(master, insecure=False)["spark.driver.bindAddress"] == "127.0.0.1"
        refuse_open_ports(master, False, {"spark.authenticate": "false"})
    for master in (FAR, "spark://127.0.0.1:1,m2:1", "yarn", "k8s://https://127.0.0.1:6443"):
        assert not stays_here(master)


def test_masters_elsewhere_authenticate_and_encrypt() -> None:
    conf = network_conf(FAR, insecure=False)
    assert {conf[name] for name in conf if name.endswith(("authenticate", "enabled"))} == {"true"}
    assert set(conf) >= {"spark.authenticate", "spark.network.crypto.enabled", "spark.io.encryption.enabled"}
    assert network_conf(FAR, insecure=True) == {}


def test_without_a_secret_they_are_refused() -> None:
    refuse_open_ports(FAR, False, SECRET)
    refuse_open_ports(FAR, True, {})
    refuse_open_ports("yarn", False, {})
    with pytest.raises(ConfigurationError, match=r"spark\.authenticate\.secret.*security\.insecure"):
        refuse_open_ports(FAR, False, {})
    for name in ("spark.authenticate", "spark.network.crypto.enabled"):
        with pytest.raises(ConfigurationError, match=f"has {name} turned off"):
            refuse_open_ports(FAR, False, {**SECRET, name: "false"})
    refuse_open_ports(FAR, False, {**SECRET, "spark.network.crypto.enabled": "false", "spark.ssl.rpc.enabled": "true"})


# What PythonGatewayServer does: writes port and secret, then waits for the end of its stdin.
GATEWAY = """
import os, struct, sys
with open("told", "wb") as f:
    f.write(struct.pack("!ii", 4711, 6) + b"secret")
os.rename("told", os.environ["_PYSPARK_DRIVER_CONN_INFO_PATH"])
sys.stdin.read()
"""


def gateway_command(directory: Path, extra: str = "") -> list[str]:
    return [sys.executable, "-c", f"import os; os.chdir({str(directory)!r})\n{GATEWAY}{extra}"]


def test_it_prints_its_address_and_ends_in_order(tmp_path: Path) -> None:
    gateway = Gateway.launch(gateway_command(tmp_path), os.environ, tmp_path)
    assert (gateway.address.port, gateway.address.secret) == (4711, "secret")
    assert gateway.alive()
    assert list(tmp_path.iterdir()) == []
    gateway.close(wait_s=10)
    assert not gateway.alive()
    assert gone_within(gateway.pid, 0.1)


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    gateway = Gateway.launch(gateway_command(tmp_path, "import time; time.sleep(60)"), os.environ, tmp_path)
    began_s = time.monotonic()
    gateway.close(wait_s=0.2)
    assert time.monotonic() - began_s < 5
    assert gone_within(gateway.pid, 0.1)


def test_killing_twice_is_killing_once(tmp_path: Path) -> None:
    gateway = Gateway.launch(gateway_command(tmp_path), os.environ, tmp_path)
    gateway.kill()
    gateway.kill()
    gateway.close(wait_s=0)
    assert not gateway.alive()


@pytest.mark.parametrize(("ending", "reason"), [("sys.exit(3)", "status 3"), ("os.abort()", "SIGABRT")])
def test_an_end_before_the_gateway_is_up_is_an_error(tmp_path: Path, ending: str, reason: str) -> None:
    with pytest.raises(EngineError, match=reason):
        Gateway.launch([sys.executable, "-c", f"import os, sys; {ending}"], os.environ, tmp_path)


def test_a_start_that_is_given_up_ends_and_leaves_nothing(tmp_path: Path) -> None:
    """The child never opens its gateway: the wait would last for START_TIMEOUT_S."""
    began = tmp_path / "began"
    silent = f"import os, time; open({str(began)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(Canceled, match="while it started"):
        Gateway.launch(
            [sys.executable, "-c", silent], os.environ, tmp_path, lambda: began.exists() and began.read_text() != ""
        )
    assert gone_within(int(began.read_text()), 5)
    assert list(tmp_path.iterdir()) == [began]


def test_what_is_given_up_while_something_waits_for_the_child_is_broken_off(tmp_path: Path) -> None:
    gateway, given_up = Gateway.launch(gateway_command(tmp_path), os.environ, tmp_path), threading.Event()

    def wait_for_the_child() -> None:
        given_up.set()
        assert gone_within(gateway.pid, 5)
        raise ConnectionResetError("as of a socket")

    with pytest.raises(Canceled, match="while it started"), gateway.kill_if(given_up.is_set):
        wait_for_the_child()
    until(lambda: not gateway.alive())  # a thread hears of its end a moment later


def test_an_error_while_nothing_is_given_up_stays_as_it_is(tmp_path: Path) -> None:
    gateway = Gateway.launch(gateway_command(tmp_path), os.environ, tmp_path)
    with pytest.raises(ConnectionResetError), gateway.kill_if(lambda: False):
        raise ConnectionResetError("of its own")
    assert gateway.alive()
    gateway.kill()


def test_what_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="ended with status"):
        Gateway.launch([str(tmp_path / "no-java")], os.environ, tmp_path)


def test_it_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    """The kernel ties the death signal to the thread that forked: that must not be the caller's."""
    born: list[Gateway] = []
    caller = threading.Thread(
        target=lambda: born.append(Gateway.launch(gateway_command(tmp_path), os.environ, tmp_path))
    )
    caller.start()
    caller.join()
    time.sleep(0.2)
    (gateway,) = born
    assert gateway.alive()
    gateway.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
def test_kill_9_of_its_parent_kills_it_even_if_it_ignores_its_stdin(tmp_path: Path) -> None:
    program = (
        "import os, sys, time; from pathlib import Path; from iscp.spark.jvm_launch import Gateway;"
        "print(Gateway.launch(sys.argv[2:], os.environ, Path(sys.argv[1])).pid, flush=True); time.sleep(60)"
    )
    stubborn = gateway_command(tmp_path, "import time; time.sleep(60)")
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), *stubborn], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert not gone_within(pid, 0.2)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert gone_within(pid, 5)
    parent.stdout.close()
