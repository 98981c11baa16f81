"""A process that deletes the index of a job until it is gone, or the process dies at a failpoint (`ISCP_FAILPOINTS`).

Its input is a line of JSON: the name, the registration, the document of the job's spec and the source's place.
"""

from __future__ import annotations

import json
import sys

from iscp.consumers.index.index_kind import IndexDeletion
from iscp.index.lance.index_store import IndexStore
from iscp.model.job.job_row import JobRow
from iscp.model.values.ids import JobKey
from iscp.ports.sink import DeletionOrder
from iscp.system.failpoints import EnvironmentFailpoints
from tests.fakes.guards import OpenGuard


def main() -> None:
    name, job_id, spec_json, source = json.loads(sys.stdin.readline())
    row = JobRow(JobKey("default", "t-1", name), job_id, spec_json, source, source)
    store = IndexStore(row.spec.consumer.target, EnvironmentFailpoints())
    IndexDeletion(store, DeletionOrder(row, 1, OpenGuard())).run()


if __name__ == "__main__":
    main()
