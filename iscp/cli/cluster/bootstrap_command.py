"""`iscp-admin token bootstrap`: the first token of a cluster, made beside etcd, as nobody is known who could make it by
a node.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from iscp.cli.cluster.token_commands import token_row
from iscp.cli.node.home_options import config_option
from iscp.cli.shell import render
from iscp.cli.shell.arguments import DURATION, anywhere_output
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import say
from iscp.core.values.access_roles import Role
from iscp.core.values.errors import ConfigurationError


@click.command()
@config_option("A node's configuration; ISCP_* variables win over it.", exists=True)
@click.option("--ttl", "ttl_s", type=DURATION, default="1d", show_default=True, help="How long it is valid.")
@anywhere_output
def bootstrap(invocation: Invocation, /, file: Path | None, ttl_s: float) -> None:
    """Print the first token, of an admin of the cluster-wide account, kept in etcd with the rights of a node.

    It is for machines that reach etcd, and calls no node.
    """
    import secrets

    from iscp.adapters.etcd.client import EtcdClient
    from iscp.adapters.etcd.keys import Keys
    from iscp.adapters.etcd.tokens.token_store import EtcdTokens
    from iscp.adapters.etcd.values import EtcdSettings
    from iscp.adapters.system.clock import SystemClock
    from iscp.bootstrap.configuration.settings import load_settings
    from iscp.runtime.access.token_service import create_token

    try:
        config, clock = load_settings(file, os.environ), SystemClock()
    except ConfigurationError as error:
        if error.field:
            raise
        remedy = "Give the configuration of a node by --config, or its variables"  # several settings are wrong
        raise ConfigurationError(error.message, about="--config", remedy=remedy) from error
    account = config.security.cluster_account
    with EtcdClient(EtcdSettings.of(config.etcd), clock) as etcd:
        store = EtcdTokens(etcd, Keys(config.etcd_prefix), account)
        token, record = create_token(
            store, account, Role.ADMIN, ttl_s, "made by iscp-admin token bootstrap", "", clock, secrets.token_hex
        )
    if render.show({"token": token, **token_row(record)}, invocation.output):
        return
    say(f"{record.token_id} is {record.role} of {account}; revoke it once there are others", err=True)
    say(token)


@click.group("token", hidden=True)
def node_token() -> None:
    """Make the first token of a cluster, as `iscp-admin token bootstrap` does, which was here before."""


node_token.add_command(bootstrap)
