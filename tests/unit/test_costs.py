"""The processor time that is shown for a test includes all processes that it had started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.costs import SHOWN, shown, spent_s

BUSY_S = 0.3
BUSY = f"import time\nwhile time.process_time() < {BUSY_S}: pass\nprint(flush=True)\ninput()"


def phase(test: str, cpu_s: float, wall_s: float) -> str:
    return json.dumps({"test": test, "phase": "call", "cpu_s": cpu_s, "wall_s": wall_s})


def test_a_process_counts_while_it_runs_and_once_it_has_ended() -> None:
    before_s = spent_s()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        if Path("/proc/self/stat").exists():
            assert spent_s() - before_s >= BUSY_S - 0.05  # in hundredths
    assert spent_s() - before_s >= BUSY_S - 0.05


def test_the_phases_of_a_test_are_added_up_and_the_dearest_shown_by_processor_and_by_clock() -> None:
    cheap = [phase(f"cheap {number}", 0.1, 0.1) for number in range(2 * SHOWN)]
    lines = list(shown([*cheap, phase("busy", 1.0, 1.0), phase("waits", 0.0, 9.0), phase("busy", 2.0, 2.0)]))
    assert lines[0].startswith("5 s of processor time")
    assert lines[1] == "    3.0 s cpu     3.0 s  busy"
    assert lines[-1] == "    0.0 s cpu     9.0 s  waits"
    assert len(lines) <= 1 + 2 * SHOWN
