"""Compose what decides who may call a node, and records who did."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import grpc

from iscp.adapters.delta.joblog.audit_table import AuditTable
from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.tokens.token_store import EtcdTokens
from iscp.adapters.etcd.tokens.token_watch import TokenWatch
from iscp.adapters.grpc.access.access_interceptor import AccessInterceptor, AccessParts
from iscp.adapters.grpc.access.access_server import AccessServer
from iscp.adapters.oidc.jwks_source import HttpJwks
from iscp.core.access.role_authorizer import RoleAuthorizer
from iscp.core.settings.config import NodeConfig
from iscp.ports.system import Clock
from iscp.runtime.access.audit_writer import AuditWriter
from iscp.runtime.access.known_callers import CertificateCaller, KnownCallers
from iscp.runtime.access.provider_keys import ProviderKeys
from iscp.runtime.access.token_service import TokenService
from iscp.runtime.loop.threads import THREADS
from iscp.runtime.node.node import RunsBesideOwner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AccessSide:
    """The parts of access control: `interceptors` come before all others; `beside` starts before users are served, and
    closes after them. `callers` is None where callers need not be known.
    """

    server: AccessServer
    interceptors: Sequence[grpc.ServerInterceptor] = ()
    beside: Sequence[RunsBesideOwner] = ()
    counters: Callable[[], Mapping[str, int]] = dict
    callers: KnownCallers | None = None


def compose_access(config: NodeConfig, etcd: EtcdClient, clock: Clock) -> AccessSide:
    """Without authentication nothing is decided, and nothing runs."""
    if not config.security.authentication:
        return AccessSide(AccessServer(None))
    keys, cluster_account = Keys(config.etcd_prefix), config.security.cluster_account
    node_name = config.node_name if config.security.tls.used else ""
    if not node_name:
        log.warning("access.nodes_unknown", extra={"why": "there is no TLS: everybody may call what is for nodes"})
    tokens = TokenWatch(etcd, keys, clock, THREADS)
    audit_table = AuditTable(config.log.uri)
    audit = AuditWriter(audit_table)
    certificates = {
        name.lower(): CertificateCaller(account, role)
        for account, each in config.accounts.items()
        for name, role in each.certificates.items()
    }
    oidc = config.security.oidc
    provider = ProviderKeys(HttpJwks(oidc), oidc, cluster_account, clock, THREADS) if oidc.used else None
    callers = KnownCallers(certificates, cluster_account, node_name, tokens, clock, provider)
    authorizer = RoleAuthorizer(cluster_account)
    parts = AccessParts(callers, authorizer, callers.still_valid, audit, clock, config.node_id, node_name)
    service = TokenService(EtcdTokens(etcd, keys, cluster_account), audit_table, clock, secrets.token_hex)
    return AccessSide(
        server=AccessServer(service),
        interceptors=[AccessInterceptor(parts)],
        beside=[tokens, audit, provider] if provider else [tokens, audit],
        counters=audit.counters,
        callers=callers,
    )
