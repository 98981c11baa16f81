"""The options of the whole command line: the cluster, the form of the output, how long a request may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp.cli.shell.terminal import say

if TYPE_CHECKING:
    from iscp.cli.shell.context_file import Chosen
    from iscp.client.admin_client import Client
    from iscp.core.values.errors import IscpError

REQUEST_TIMEOUT_S = 30.0
"""Seconds that a command calls nodes for an answer if --request-timeout does not say it; then it fails."""


@dataclass(slots=True)
class Invocation:
    """The options that may stand anywhere on the line; one further right wins."""

    endpoint: str | None = None
    context: str | None = None
    output: str = "table"
    request_timeout_s: float | None = None
    pause: Callable[[float], None] = time.sleep

    @property
    def wide(self) -> bool:
        """Return whether all columns of a table are to be shown, however narrow the terminal is."""
        return self.output == "wide"

    @property
    def for_people(self) -> bool:
        """Return whether the answer is in words and tables, and not for a program."""
        return self.output in ("table", "wide")

    def client(self) -> Client:
        from iscp.client.admin_client import Client

        chosen = self.chosen().context
        tls, token = chosen.tls(), chosen.token()
        timeout_s = self.within_s(REQUEST_TIMEOUT_S)
        # Where nobody listens a person is to know it at once, and a script repeats its command.
        notice = self._show_notice
        return Client(chosen.endpoint, timeout_s=timeout_s, tls=tls, token=token, notice=notice, wait_for_ready=False)

    def within_s(self, seconds: float) -> float:
        """Return how long a request may take, in seconds: `seconds` if the command line says nothing."""
        return seconds if self.request_timeout_s is None else self.request_timeout_s

    def chosen(self) -> Chosen:
        """Return where the command goes. Raises ConfigurationError if the user's file of contexts is wrong."""
        from iscp.cli.shell.context_file import choose

        return choose(self.endpoint, self.context)

    def _show_notice(self, error: IscpError, left_s: float) -> None:
        """Show a notice on stderr, where with `-o json` only errors are."""
        if self.output != "json":
            say(f"{error.message}; trying for {left_s:.0f} s more", err=True)
