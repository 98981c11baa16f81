"""Proves how a program ends: by its status, with all that it has written, and without taking Python's objects down."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import IO

import pytest

PROGRAM = """
import atexit, sys, threading, time
from iscp.cli.shell.program_end import run_to_end

class Held:
    def __del__(self):
        print("taken down")

held = Held()

def work():
    time.sleep(0.2)
    print("waited for")

def main():
    atexit.register(print, "exit handler")
    threading.Thread(target=work).start()
    print("done")
    {ending}

run_to_end(main)
"""
"""A program whose ways to its end each say that they were gone."""


def run(ending: str, stdout: int | IO[str] = subprocess.PIPE) -> tuple[int, str, str]:
    command = [sys.executable, "-c", PROGRAM.format(ending=ending)]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, env=environ, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("ending", "status", "said"),
    [
        ("pass", 0, ""),
        ("raise ValueError('odd')", 1, "ValueError: odd"),
        ("sys.exit()", 0, ""),
        ("sys.exit('in words')", 1, "in words"),
        ("sys.exit(3)", 3, ""),
    ],
)
def test_all_is_written_and_the_status_kept_and_nothing_is_taken_down(ending: str, status: int, said: str) -> None:
    found, out, err = run(ending)
    assert (found, out) == (status, "done\nwaited for\nexit handler\n")
    assert err.strip().endswith(said)
    assert bool(err) == bool(said)


def test_what_cannot_be_written_is_reported() -> None:
    with open("/dev/full", "w") as full:
        status, _, err = run("pass", full)
    assert status == 120  # Python's own
    assert "No space left on device" in err
