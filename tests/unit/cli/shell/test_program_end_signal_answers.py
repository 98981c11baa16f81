"""Proves what signals do to a process: nothing is lost as modules load, and a repetition is the same signal."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

LOADING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in what runs in the background
class Signaller:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Signaller())
sys.argv[1:] = ["run", os.devnull]
from iscp.cli.entry_points import iscp
iscp()
"""
"""A program that gets a signal as it loads a module."""

REPEATED = """
import signal, sys, time
from iscp.cli.shell.program_end import REPEAT_S, answer_first_signal
heard = []
come = answer_first_signal(heard.append)
signal.raise_signal({number})
signal.raise_signal({number})
assert heard == come == [{number}], (heard, come)
time.sleep(REPEAT_S + 0.1)
print("later", flush=True)
signal.raise_signal({number})
print("never")
"""

NUMBERS = [signal.SIGINT, signal.SIGTERM]


def run(program: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("module", ["click", "iscp.cli.run.run_output", "iscp.app.local_engine"])
def test_a_signal_while_modules_load_ends_the_program_with_its_status(module: str, number: signal.Signals) -> None:
    assert run(LOADING.format(module=module, number=int(number))) == (128 + number, "", "")


@pytest.mark.parametrize("number", NUMBERS)
def test_a_repetition_is_the_same_signal_and_a_later_one_ends_the_process(number: signal.Signals) -> None:
    assert run(REPEATED.format(number=int(number))) == (-number, "later\n", "")
