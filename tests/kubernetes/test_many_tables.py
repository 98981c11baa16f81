"""How long each of many tables stands still while its nodes are upgraded; measured, not held to anything."""

from __future__ import annotations

import time

import pytest

from tests.kubernetes.changing_tables import ChangingTables
from tests.kubernetes.release import NEXT_IMAGE, Release
from tests.kubernetes.timed import timed

TABLES = 1_000
PAUSE_S = 0.1
STEADY_S = 60.0
LOADED_S = 20.0


@pytest.mark.full
@pytest.mark.timeout(3_000)
def test_no_row_of_many_tables_is_lost_while_nodes_are_upgraded(release: Release, report: list[str]) -> None:
    release.probe = {}  # a thousand tables are not all probed every second: their writers notify
    release.upgrade(3)
    tables = ChangingTables(release.lake, "many", TABLES, PAUSE_S)
    with release.connect() as client:
        with timed(report, f"first copies of {TABLES} tables"):
            tables.create(client)
            tables.settle(client)
        with tables.changing(client):
            time.sleep(STEADY_S)
        report.append(f"without an upgrade: {tables.settle(client)}")
        with tables.changing(client):
            with timed(report, "upgrade of three nodes"):
                release.upgrade(3, NEXT_IMAGE)
            time.sleep(LOADED_S)
        report.append(f"during it: {tables.settle(client)}")
    assert len(release.ready()) == 3
