"""A node in a process of its own, as attackers see it, and what an attack may not do to it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from iscp.client.admin_client import Client

HARMS = ("admin.failed", "node_call.failed", "access.failed", "node.broken", "gateway.failed", "port.failed")
"""Events of its log that say that something happened which nobody had foreseen."""


INSIDES = re.compile(r"Traceback|File \"|site-packages|\.py\b|object at 0x|unforeseen")
"""What no answer may say."""


def play(examples: int, check: Callable[[st.DataObject], None], number: int = 1) -> None:
    """Check so many examples, which `number` alone decides."""

    @seed(number)
    @settings(max_examples=examples, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def at_random(data: st.DataObject) -> None:
        check(data)

    at_random()


@dataclass(frozen=True, slots=True)
class AttackedNode:
    """`cluster`, `node_id` and `epoch` are those by which nodes call each other."""

    address: str
    gateway: str
    pid: int
    alive: Callable[[], bool]
    log: Path
    cluster: str = ""
    node_id: str = ""
    epoch: int = 0

    @property
    def memory_mib(self) -> int:
        return self._figure_mib("VmRSS")

    @property
    def peak_mib(self) -> int:
        """The most memory that it has had."""
        return self._figure_mib("VmHWM")

    def _figure_mib(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        (line,) = (line for line in lines if line.startswith(name))
        return int(line.split()[1]) // 1024

    @property
    def files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def said(self) -> list[dict[str, Any]]:
        """The lines of its log."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def assert_unharmed(self, before_mib: int, more_mib: int) -> None:
        """It lives, answers a new client, and has so much more memory at the most."""
        assert self.alive()
        with Client(self.address, timeout_s=20.0) as client:
            client.cluster()
        assert self.memory_mib <= before_mib + more_mib
        assert not [line for line in self.said if line["event"] in HARMS]
