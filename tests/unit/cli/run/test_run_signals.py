"""Proves that `iscp run` ends in order by a signal that comes before any job is begun."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.fakes.waiting import process_state, until

END_S = 60.0
"""Seconds that the process may take to end."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_files_are_read_ends_the_run_with_its_status(tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "jobs.yaml"
    os.mkfifo(file)
    command = [sys.executable, "-m", "iscp.cli.iscp", "run", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process, file.open("wb", buffering=0) as pipe:  # which returns once the run has opened it
        pipe.write(b"#")
        wait_for_reader(pipe, process.pid)
        process.send_signal(number)
        said, complained = process.communicate(timeout=END_S)
    assert process.returncode == 128 + number
    assert (said, complained) == ("", "")


def wait_for_reader(pipe: BinaryIO, pid: int) -> None:
    """Return once the process has read all of the pipe and waits for more.

    CPython answers a signal that interrupts a system call, or comes between two instructions. A signal that comes
    between the last instruction and the call that waits is answered only after that call.
    """
    until(lambda: fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) == bytes(4) and process_state(pid) == "S", END_S)
