"""The commands of docs/recovery.md, run as they are there on a cluster of the harness: page and tests cannot part.

Places are those of the cluster, `systemctl` starts and stops its processes, and `iscp-admin` runs in this process.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.evidence import admin
from tests.e2e.harness import NODE_ID, Cluster

PAGE = Path(__file__).parents[2] / "docs" / "recovery.md"

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, list[list[str]]]:
    """The lines of each block of commands, by the heading that it is below."""
    _, *parts = _SECTION.split(PAGE.read_text())
    found = zip(parts[::2], parts[1::2], strict=True)
    return {heading: [block.splitlines() for block in _BLOCK.findall(text)] for heading, text in found}


@dataclass
class Operator:
    """Who does what the page says."""

    cluster: Cluster

    def __post_init__(self) -> None:
        layout, root = self.cluster.layout, self.cluster.root
        self.backups = root / "backup"
        self.backups.joinpath("iscp").mkdir(parents=True)
        self._places = {
            "/etc/iscp/node.toml": layout.config(NODE_ID),
            "/etc/iscp": layout.config(NODE_ID).parent,
            "/var/lib/iscp": layout.scratch(NODE_ID),
            "/var/lib/etcd": layout.etcd,
            "/lake/iscp": layout.job_log,
            "/lake": self.cluster.lake,
            "/backup": self.backups,
        }
        # The longest first, where one begins as another does.
        names = sorted(self._places, key=len, reverse=True)
        self._named = re.compile("|".join(map(re.escape, names)))

    def run(self, section: str, block: int = 0) -> str:
        """All commands of a block, in order; what they have printed. Each has to end well."""
        return "".join(self._run_line(line) for line in sections()[section][block])

    def _run_line(self, line: str) -> str:
        words = shlex.split(line, comments=True)
        if words[:1] == ["systemctl"]:
            self._control(*words[1:])
            return ""
        command = self._named.sub(lambda found: str(self._places[found[0]]), line)
        if words[:1] == ["iscp-admin"]:
            answer = admin(self.cluster.endpoint, *shlex.split(command, comments=True)[1:])
            assert answer.status == 0, f"{line}\n{answer.out}{answer.err}"
            return answer.out
        run = subprocess.run(["bash", "-ec", command], capture_output=True, text=True, check=False)
        assert run.returncode == 0, f"{line}\n{run.stdout}{run.stderr}"
        return run.stdout

    def _control(self, verb: str, service: str) -> None:
        match verb, service:
            case "stop", "iscp":
                self.cluster.node.stop()
            case "start", "iscp":
                self.cluster.start_node()
            case "stop", "etcd":
                self.cluster.etcd.stop()
            case "start", "etcd":
                self.cluster.start_etcd()
            case _:
                raise AssertionError(f"systemctl {verb} {service} is of no service here")
