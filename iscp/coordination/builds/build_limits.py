"""How much of builds the owner does at a time."""

from __future__ import annotations

from dataclasses import dataclass

from iscp.core.settings.config import KEPT_BYTES_MAX

WRITES_OF_BUILDS_MAX = 100
"""Operations in one transaction of builds, as etcd refuses more than 128; the others follow in further ones."""

GROUP_WRITES_MAX = 4
"""Operations of changes that are made together or not at all: each transaction has room for so many at its end."""

REMOVE_EVERY_S = 0.2
"""How long finished tasks gather before they are removed together, so that each node's answers cost no transaction."""

LOAD_RETRY_S = 1.0
"""Pause before an owner reads the tasks again that etcd did not give, or of which it does not know what was written."""

RANGE_TIMEOUT_S = 1_800.0
"""How long a node may have a range without finishing it; then another node gets it, and its jobs are shown as failing
until one has finished it.
"""

CHECK_EVERY_S = 15.0
"""How long after its last transaction an owner reads whether etcd still has that, and again after each such read."""


@dataclass(frozen=True, slots=True)
class BuildLimits:
    tables_at_once: int = 1
    """Tables that are built at a time; the others wait for their turn."""

    writes_max: int = WRITES_OF_BUILDS_MAX
    """As WRITES_OF_BUILDS_MAX."""

    kept_bytes_max: int = KEPT_BYTES_MAX
    """As `build.kept_bytes_max`."""

    check_every_s: float = CHECK_EVERY_S
    """As CHECK_EVERY_S."""

    range_timeout_s: float = RANGE_TIMEOUT_S
    """As RANGE_TIMEOUT_S."""
