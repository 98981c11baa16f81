"""The access to Spark that all else is composed on, however it came to be there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkAccess(Protocol):
    """Spark with Delta: its root session, and further ones in the same SparkContext."""

    @property
    def root(self) -> SparkSession: ...

    @property
    def local(self) -> bool:
        """Return whether tasks run within the JVM, and not on executors elsewhere."""

    def new_session(self) -> SparkSession:
        """Return a session with SQL settings and temporary views of its own, in the same SparkContext."""

    def alive(self) -> bool:
        """Return whether there is a JVM, unless none was needed yet, and a cluster's manager has not ended its
        application.
        """

    def kill(self) -> None:
        """End the JVM by force: a deadline has passed, and nothing may be written any more."""

    def stop(self) -> None:
        """Stop Spark in order."""
