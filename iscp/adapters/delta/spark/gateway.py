"""One JVM with Spark's Python gateway in it, whose life is tied to this process.

Decides how the JVM is started, and that it ends when this process does; knows nothing of Delta or of sessions.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iscp.adapters.delta.spark.jvm_log import relay_output
from iscp.adapters.system.child_process import spawn_watched
from iscp.core.values.errors import Canceled, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

START_TIMEOUT_S = 180.0
"""How long a JVM may take to open its gateway; then it is killed, and the start fails with an EngineError."""

START_POLL_S = 0.02
"""Pause between two checks whether the gateway is open."""

GIVEN_UP = "Spark was stopped while it started"

GIVEN_UP_POLL_S = 0.1
"""Pause between two checks whether a start that is under way was given up."""

KILL_WAIT_S = 10.0
"""How long a killed JVM is waited for; then the node goes on without it."""

LAST_WORDS_WAIT_S = 1.0
"""How long the last output of a JVM that has ended is waited for; children of its own may hold its output open."""

_INT = struct.Struct("!i")


@dataclass(frozen=True, slots=True)
class Address:
    """The port at which a gateway listens on the loopback interface, and the secret that it requires."""

    port: int
    secret: str


class Gateway:
    """A running JVM and the address of its gateway.

    It ends with this process, even if that is killed: on Linux by the kernel's death signal, elsewhere
    because its stdin ends.
    """

    def __init__(self, child: subprocess.Popen[bytes], address: Address, ended: threading.Event) -> None:
        self._child = child
        self._ended = ended
        self.address = address

    @classmethod
    def launch(
        cls,
        command: Sequence[str],
        environ: Mapping[str, str],
        scratch_dir: Path,
        given_up: Callable[[], bool] = lambda: False,
    ) -> Gateway:
        """Starts `command`, a SparkSubmit with `pyspark-shell`, and waits for its gateway.

        Its address goes through a file below `scratch_dir`, where only what belongs to this process lies.
        Raises EngineError if it ends or stays silent for START_TIMEOUT_S, and Canceled once it was `given_up`.
        """
        scratch = Path(tempfile.mkdtemp(prefix="gateway-", dir=scratch_dir))
        try:
            written = scratch / "address"
            output, relay = relay_output()
            child, ended = _spawn(command, {**environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(written)}, output)
            try:
                return cls(child, _await_address(written, ended, child, given_up), ended)
            except BaseException:
                child.kill()
                relay.join(LAST_WORDS_WAIT_S)
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @property
    def pid(self) -> int:
        return self._child.pid

    def alive(self) -> bool:
        return not self._ended.is_set()

    def kill(self) -> None:
        """Send SIGKILL, and return when the process is gone."""
        self._child.kill()
        self._ended.wait(KILL_WAIT_S)

    @contextmanager
    def kill_if(self, given_up: Callable[[], bool]) -> Iterator[None]:
        """Kill the JVM once something is `given_up` that is under way within, so that it ends; raise Canceled then."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(GIVEN_UP_POLL_S):
                if given_up():
                    self._child.kill()
                    return

        watcher = threading.Thread(target=watch, name="iscp-jvm-start", daemon=True)
        watcher.start()
        try:
            yield
        except Exception as error:
            if given_up():
                raise Canceled(GIVEN_UP) from error
            raise
        finally:
            over.set()
            watcher.join()

    def close(self, wait_s: float) -> None:
        """Ends the JVM by closing its stdin; kills it after `wait_s`."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        if not self._ended.wait(wait_s):
            self.kill()


def _spawn(
    command: Sequence[str], environ: Mapping[str, str], output: int
) -> tuple[subprocess.Popen[bytes], threading.Event]:
    try:
        return spawn_watched(
            command,
            "iscp-jvm",
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=dict(environ),
            process_group=0,  # Ctrl-C is for this process, which then stops the JVM in order
        )
    except OSError as fault:
        raise EngineError(f"the JVM cannot be started ({fault})") from fault
    finally:
        os.close(output)


def _await_address(
    written: Path, ended: threading.Event, child: subprocess.Popen[bytes], given_up: Callable[[], bool]
) -> Address:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not written.exists():
        if ended.wait(START_POLL_S):
            how = child.returncode
            by = f"signal {signal.Signals(-how).name}" if how < 0 else f"status {how}"
            raise EngineError(f"the JVM ended with {by} before its gateway was up; the log has what it said last")
        if given_up():
            raise Canceled(GIVEN_UP)
        if time.monotonic() > deadline_s:
            raise EngineError(f"the JVM's gateway was not up within {START_TIMEOUT_S:.0f} s")
    # Complete: the JVM renames the file into its place.
    content = written.read_bytes()
    (port,) = _INT.unpack_from(content)
    (length,) = _INT.unpack_from(content, _INT.size)
    return Address(port, content[2 * _INT.size :][:length].decode())
