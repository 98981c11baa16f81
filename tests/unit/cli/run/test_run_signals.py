"""Proves that `iscp run` ends in order by a signal that comes before any job is begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

END_S = 60.0
"""Seconds that the process may take to end."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_files_are_read_ends_the_run_with_its_status(tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "jobs.yaml"
    os.mkfifo(file)
    command = [sys.executable, "-m", "iscp.cli.iscp", "run", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process, file.open("w"):  # which returns once the run reads it
        process.send_signal(number)
        said, complained = process.communicate(timeout=END_S)
    assert process.returncode == 128 + number
    assert (said, complained) == ("", "")
