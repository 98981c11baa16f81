"""Compose what the nodes of a cluster share in etcd."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from iscp.adapters.etcd.builds.build_store import EtcdBuilds
from iscp.adapters.etcd.checkpoint_key import EtcdCheckpoint
from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.death_board import EtcdDeathBoard
from iscp.adapters.etcd.election import EtcdElection
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.log_marks import EtcdLogMarks
from iscp.adapters.etcd.members.member_keys import EtcdMembership
from iscp.adapters.etcd.override_keys import EtcdOverrides
from iscp.adapters.etcd.server import RELEASE_REMEDY, member_releases, release_fault, release_warning
from iscp.adapters.etcd.values import EtcdSettings
from iscp.core.settings.config import NodeConfig
from iscp.core.values.errors import ConfigurationError
from iscp.ports.cluster import ClusterPorts
from iscp.ports.engine import NodeDeaths
from iscp.ports.system import Clock
from iscp.runtime.loop.threads import THREADS

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster's parts in etcd: an owner uses `ports`, and all nodes use `builds` and `deaths`."""

    etcd: EtcdClient
    membership: EtcdMembership
    election: EtcdElection
    ports: ClusterPorts
    builds: EtcdBuilds
    deaths: EtcdDeathBoard

    @classmethod
    def connect(cls, config: NodeConfig, clock: Clock, own_deaths: NodeDeaths) -> Cluster:
        settings = EtcdSettings.of(config.etcd)
        etcd = EtcdClient(settings, clock)
        releases = member_releases(etcd, settings, clock, settings.timeout_s)
        check_releases(releases, config.etcd.accept_faulty_release)
        keys, lease_ttl_s, margin_s = Keys(config.etcd_prefix), config.etcd.lease_ttl_s, config.etcd.margin_s
        election = EtcdElection(etcd, keys, clock, lease_ttl_s=lease_ttl_s, margin_s=margin_s)
        membership = EtcdMembership(etcd, keys, clock, THREADS, lease_ttl_s=lease_ttl_s, margin_s=margin_s)
        ports = ClusterPorts(
            membership=membership,
            election=election,
            overrides=EtcdOverrides(etcd, election, keys),
            checkpoints=EtcdCheckpoint(etcd, election, keys),
            marks=EtcdLogMarks(etcd, election, keys),
        )
        builds = EtcdBuilds(etcd, election, keys, THREADS)
        deaths = EtcdDeathBoard(etcd, keys, config.node_id, THREADS)
        own_deaths.share(deaths)
        return cls(etcd=etcd, membership=membership, election=election, ports=ports, builds=builds, deaths=deaths)


def check_releases(releases: Mapping[str, str], accepted: bool) -> None:
    """Raise ConfigurationError for a member of etcd whose release can lose or spoil what it was given."""
    for member, version in releases.items():
        if not version:
            log.warning("etcd.release_unknown", extra={"member": member})
            continue
        fault = release_fault(version)
        if fault and not accepted:
            raise ConfigurationError(
                f"names member {member}: {fault}",
                field="etcd.endpoints",
                remedy=f"{RELEASE_REMEDY}. For a trial, set etcd.accept_faulty_release",
            )
        if found := fault or release_warning(version):
            log.warning("etcd.version", extra={"member": member, "warning": f"{found}. {RELEASE_REMEDY}"})
