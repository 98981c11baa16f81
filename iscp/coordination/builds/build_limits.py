"""Limits of how much of builds the owner does at a time."""

from __future__ import annotations

from dataclasses import dataclass

from iscp.core.settings.config import RETAINED_BYTES_MAX

WRITES_OF_BUILDS_MAX = 100
"""Operations in one transaction of builds, as etcd refuses more than 128; the others follow in further ones."""

GROUP_WRITES_MAX = 4
"""Operations of changes that are made together or not at all: each transaction has room for so many at its end."""

REMOVE_EVERY_S = 0.2
"""Seconds for which finished tasks gather before they are removed together, so that each node's answers cost no
transaction.
"""

LOAD_RETRY_S = 1.0
"""Pause before an owner reads the tasks again that etcd did not give, or of which it does not know what was written."""

RANGE_TIMEOUT_S = 1_800.0
"""Seconds that a node has to finish a range. After them another node gets it, and its jobs are shown as failing until
one has finished it.
"""

CHECK_EVERY_S = 15.0
"""Seconds after its last transaction at which an owner reads whether etcd still has it, and again after each such read.
"""


@dataclass(frozen=True, slots=True)
class BuildLimits:
    tables_at_once: int = 1
    """Tables that are built at a time; the others wait for their turn."""

    writes_max: int = WRITES_OF_BUILDS_MAX
    """See WRITES_OF_BUILDS_MAX."""

    retained_bytes_max: int = RETAINED_BYTES_MAX
    """See the setting `build.kept_bytes_max`."""

    check_every_s: float = CHECK_EVERY_S
    """See CHECK_EVERY_S."""

    range_timeout_s: float = RANGE_TIMEOUT_S
    """See RANGE_TIMEOUT_S."""
