"""A deferrable sensor of Airflow: waits until the target of a job has taken in a version of a table.

While it waits it holds no worker: the triggerer runs `iscp run --dry-run` now and then, which starts no JVM.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

from airflow.exceptions import AirflowException
from airflow.sdk import BaseSensorOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

POLL_S = 15.0


def forecast_command(iscp: str, files: Sequence[str], job: str) -> list[str]:
    return [iscp, "run", *files, "--select", job, "--dry-run", "--output", "json"]


def version_taken_in(said: str, table: str) -> int:
    """The version of `table` that the target is at; -1: there is none yet. Raises where the job cannot be run."""
    (found,) = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    if found["action"] in ("refused", "skipped"):
        raise AirflowException(f"{found['name']}: {found['why']}")
    return int(found["versions"].get(table, {"applied": -1})["applied"])


class VersionSensor(BaseSensorOperator):
    """Waits until `job` of `files` has taken in `version` of `table`, the place of one of the tables that it reads."""

    template_fields = ("files", "job", "table", "version")

    def __init__(
        self, *, files: Sequence[str], job: str, table: str, version: str | int, iscp: str = "iscp", **others: Any
    ) -> None:
        super().__init__(**others)
        self.files, self.job, self.table, self.version, self.iscp = files, job, table, version, iscp

    def execute(self, context: Any) -> None:
        command = forecast_command(self.iscp, self.files, self.job)
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise AirflowException(ended.stdout + ended.stderr)
        if version_taken_in(ended.stdout, self.table) < int(self.version):
            trigger = VersionTrigger(command, self.table, int(self.version))
            self.defer(trigger=trigger, method_name="arrived", timeout=timedelta(seconds=self.timeout))

    def arrived(self, context: Any, event: dict[str, Any]) -> int:
        """The version that the target is at now."""
        if "fault" in event:
            raise AirflowException(event["fault"])
        return int(event["version"])


class VersionTrigger(BaseTrigger):
    def __init__(self, command: list[str], table: str, version: int) -> None:
        super().__init__()
        self.command, self.table, self.version = command, table, version

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "iscp_version.VersionTrigger", {
            "command": self.command,
            "table": self.table,
            "version": self.version,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while True:
            program = await asyncio.create_subprocess_exec(
                *self.command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            said, complained = (each.decode() for each in await program.communicate())
            if program.returncode:
                yield TriggerEvent({"fault": said + complained})
                return
            if (at := version_taken_in(said, self.table)) >= self.version:
                yield TriggerEvent({"version": at})
                return
            await asyncio.sleep(POLL_S)
