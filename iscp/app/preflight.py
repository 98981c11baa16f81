"""Check whether a node fits into its cluster, before it joins."""

from __future__ import annotations

from iscp.delta.joblog.delta_job_log import refuse_other_cluster
from iscp.model.settings.config import NodeConfig
from iscp.model.values.errors import ConfigurationError, IscpError
from iscp.model.values.ids import TTL_RATIO_MAX, NodeRecord, ttls_fit, understands
from iscp.ports.cluster import Membership
from iscp.server.node.owner_streams import describe
from iscp.system.small_files import open_files_limit, refuse_too_few_files
from iscp.system.tls.tls_files import TlsSource


def refuse_misfit(config: NodeConfig, record: NodeRecord, membership: Membership, tls: TlsSource | None) -> None:
    """Raise ConfigurationError where this node would do harm, or could not be spoken to, before anybody knows it.

    Its server runs by now.
    """
    members, _ = membership.members()
    refuse_too_few_files(open_files_limit(), len({each.node_id for each in members} | {config.node_id}))
    refuse_other_cluster(config.log.uri, config.cluster)
    for each in members:
        if not understands(each.wire_format, record.wire_format):
            raise ConfigurationError(
                f"{each.node_id} speaks wire format {each.wire_format}, and this node {record.wire_format}",
                about="version",
                remedy="Upgrade the nodes so that no two of them are more than one wire format apart",
            )
        if not ttls_fit(each.ttl_s, config.etcd.lease_ttl_s):
            raise ConfigurationError(
                f"{each.node_id} has a lease of {each.ttl_s:g} s, and this node one of {config.etcd.lease_ttl_s:g} s",
                about="etcd.lease_ttl_s",
                remedy=f"Give all nodes about the same; none may be more than {TTL_RATIO_MAX:g} times another's",
            )
        if each.authenticates != record.authenticates and each.node_id != record.node_id:
            it, this = (
                "knows its callers" if on else "lets everybody in" for on in (each.authenticates, record.authenticates)
            )
            raise ConfigurationError(
                f"{each.node_id} {it}, and this node {this}",
                about="security.authentication",
                remedy="Give all nodes the same. To change it, stop all first; those of earlier versions let all in",
            )
    try:
        found = describe(record.address, tls=tls)
    except IscpError as error:
        raise ConfigurationError(
            f"this node is not reached at {record.address} ({error.message})",
            about="advertise",
            remedy="Give the address at which the other nodes reach this one",
        ) from error
    if (found.cluster, found.node_id) != (config.etcd_prefix, config.node_id):
        raise ConfigurationError(
            f"{record.address} leads to {found.node_id} of {found.cluster}",
            about="advertise",
            remedy="Give the address at which the other nodes reach this one",
        )
