"""Compose the page for browsers, whose libraries are loaded only where it is served."""

from __future__ import annotations

from collections.abc import Callable

from iscp.bootstrap.foundation import Foundation
from iscp.core.values.errors import ConfigurationError
from iscp.core.values.extras import extra_missing
from iscp.runtime.node.node import Server


def compose_page(foundation: Foundation, others: Server, admin_address: Callable[[], str]) -> Server:
    """Return the page's server, with which `others` start and stop; `admin_address` is known once those have started.

    Raises ConfigurationError where its libraries are not installed.
    """
    try:
        from iscp.page.serving.page_server import PageServer, PageSettings
    except ModuleNotFoundError as error:
        if not (sentence := extra_missing(error, "page")):
            raise
        raise ConfigurationError(f"is set, and {sentence}", field="page.listen", remedy="Or leave it empty") from error
    config = foundation.config
    settings = PageSettings(
        listen=config.page.listen,
        hosts=config.page.hosts,
        authentication=config.security.authentication,
        cluster=config.cluster,
        node_id=config.node_id,
    )
    return PageServer(others, admin_address, settings, foundation.clock, foundation.tls)
