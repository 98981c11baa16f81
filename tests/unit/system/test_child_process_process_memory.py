from __future__ import annotations

from pathlib import Path

from iscp.system.child_process import resident_bytes


def test_the_resident_memory_is_what_the_kernel_says() -> None:
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmRSS:"))
    said = int(line.split()[1]) * 1024
    assert abs(resident_bytes() - said) < 64 * 1024**2
