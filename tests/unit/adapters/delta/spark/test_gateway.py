"""A child process ends with its parent, whatever ends that; tested with a child that is no JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from iscp.adapters.delta.spark.gateway import Gateway
from iscp.core.values.errors import Canceled, EngineError
from tests.fakes.waiting import until
from tests.processes import gone_within

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
        "import os, sys, time; from pathlib import Path; from iscp.adapters.delta.spark.gateway import Gateway;"
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
