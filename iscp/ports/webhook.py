"""The port to where notifications go."""

from __future__ import annotations

from typing import Protocol

from iscp.core.job.notification import Notification


class Webhook(Protocol):
    """One receiver. `name` is what logs may say of it, which its URL is not: that may hold a secret."""

    @property
    def name(self) -> str: ...

    def post(self, notification: Notification) -> None:
        """Send it once, within a bounded time.

        Raises Unavailable where the receiver does not accept anything now, PermanentError where it refuses this.
        """
