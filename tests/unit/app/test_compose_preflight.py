"""A node that would do harm to its cluster is refused before anybody knows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from iscp.app.compose import refuse_misfit
from iscp.etcd.keys import Keys, KeyValue, encoded, snapshot_of
from iscp.model.settings.config import JobLogConfig, NodeConfig
from iscp.model.values.errors import ConfigurationError
from iscp.model.values.ids import NodeRecord
from iscp.system.threads import SystemClock
from tests.fakes.etcd import FakeEtcd, FakeMembership

OTHER = NodeRecord("n-1", 1, "n-1:1")


def refused(there: NodeRecord, joining: NodeRecord, tmp_path: Path) -> ConfigurationError:
    """Of a node that nobody reaches, which is the last thing that is checked."""
    etcd = FakeEtcd(SystemClock())
    FakeMembership(etcd).register(there)
    config = NodeConfig(node_id=joining.node_id, log=JobLogConfig(uri=str(tmp_path)), listen="127.0.0.1:1")
    with pytest.raises(ConfigurationError) as error:
        refuse_misfit(config, joining, FakeMembership(etcd), None)
    return error.value


@pytest.mark.parametrize("authenticates", [True, False])
def test_nodes_that_know_their_callers_and_nodes_that_do_not_are_no_cluster(
    authenticates: bool, tmp_path: Path
) -> None:
    """One that lets everybody in would do so for all, as soon as it is the owner."""
    joining = NodeRecord("n-0", 1, "127.0.0.1:1", authenticates=authenticates)
    error = refused(replace(OTHER, authenticates=not authenticates), joining, tmp_path)
    assert error.field == "security.authentication"
    assert "n-1" in error.message
    assert "stop all" in error.remedy
    for fits in (replace(OTHER, authenticates=authenticates), replace(joining, authenticates=not authenticates)):
        assert refused(fits, joining, tmp_path).field == "advertise"


def test_a_node_of_a_version_that_does_not_say_lets_everybody_in() -> None:
    def read(value: bytes) -> NodeRecord:
        (record,) = snapshot_of([KeyValue(Keys().node("n-1"), value, 1, 1, 1, 0)])
        return record

    said = encoded(replace(OTHER, authenticates=True))
    assert read(said).authenticates
    assert not read(said.replace(b', "authenticates": true', b"")).authenticates
