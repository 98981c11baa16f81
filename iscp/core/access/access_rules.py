"""Which role each method of each service needs, and whose account it concerns. What is not here is refused.

The keys are gRPC's full names of methods. The same table is behind JSON over HTTP, whose calls are calls of `Admin`.
Cursors of changefeeds do not go over gRPC: applications write them to etcd themselves (docs/authorization.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from iscp.core.values.access_roles import Role


class Scope(Enum):
    """Whom a method concerns."""

    OPEN = auto()
    """Nobody: it is answered without knowing who calls."""
    NODES = auto()
    """Nodes alone, which are known by their certificate at the method itself."""
    CALLER = auto()
    """Nobody's account: everybody who is known has it."""
    ACCOUNT = auto()
    """The accounts that the request names; where it names none, the caller's own."""
    CLUSTER = auto()
    """All accounts: it is for the cluster-wide account."""


class Foreign(Enum):
    """What is answered to who names another account's things: the same, whether they exist or not."""

    MISSING = auto()
    """As of a table that has no jobs."""
    NOTHING = auto()
    """An empty answer, as there is nothing; of a table that is named, as MISSING."""
    UNCHANGED = auto()
    """That nothing has changed, as there was nothing."""
    REFUSED = auto()
    """That it is not theirs to do there: of what makes something."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`foreign` counts where the scope is ACCOUNT."""

    scope: Scope
    role: Role = Role.VIEWER
    audited: bool = False
    foreign: Foreign = Foreign.MISSING


def _account(role: Role, *, audited: bool = False, foreign: Foreign = Foreign.MISSING) -> Rule:
    return Rule(Scope.ACCOUNT, role, audited, foreign)


_NODES, _OPEN = Rule(Scope.NODES), Rule(Scope.OPEN)
_VIEW, _LIST = _account(Role.VIEWER), _account(Role.VIEWER, foreign=Foreign.NOTHING)
_READ_SOURCES = _account(Role.EDITOR)
_EDIT = _account(Role.EDITOR, audited=True)
_OPERATE, _OVERSEE = Rule(Scope.CLUSTER, Role.OPERATOR, audited=True), Rule(Scope.CLUSTER, Role.VIEWER)

_BY_SERVICE: Mapping[str, Mapping[str, Rule]] = {
    "iscp.wire.v1.Admin": {
        "Register": _account(Role.EDITOR, audited=True, foreign=Foreign.REFUSED),
        # Reads what is named, and has Spark analyze SQL.
        "Check": _account(Role.EDITOR, audited=True, foreign=Foreign.REFUSED),
        "Unregister": _account(Role.EDITOR, audited=True, foreign=Foreign.UNCHANGED),
        "Pause": _EDIT,
        "Resume": _EDIT,
        "Resync": _EDIT,
        "UpdateJobs": _EDIT,
        "ChangeJobs": _EDIT,
        "ListJobs": _LIST,
        "CountJobs": _LIST,
        "GetJob": _VIEW,
        "WaitJob": _VIEW,
        "History": _VIEW,
        # Reads source and target as a whole, and with `repair` writes.
        "VerifyJob": _EDIT,
        # Reads any table that its query names, and has Spark analyze that.
        "ExplainConsumer": _EDIT,
        # As often as a source is committed to, and nothing is written: not audited.
        "Notify": _READ_SOURCES,
        "GetCluster": _OVERSEE,
    },
    "iscp.wire.v1.Operator": {
        "ChangeNode": _OPERATE,
        "ChangeShards": _OPERATE,
        "Reshard": _OPERATE,
        "Rebalance": _OPERATE,
        "GetPlacement": _LIST,
        "GetEvents": _LIST,
        # Of one job; a node's whole log is for the cluster-wide account.
        "GetLogs": _account(Role.OPERATOR),
    },
    "iscp.wire.v1.Builds": {
        "GetBuilds": _LIST,
        # Of one job; all jobs of a table, of whichever account, are for the cluster-wide one.
        "AbortBuild": _EDIT,
        "PrioritizeBuild": _OPERATE,
        "ReshardBuild": _OPERATE,
    },
    "iscp.wire.v1.Access": {
        "CreateToken": _account(Role.ADMIN, audited=True, foreign=Foreign.REFUSED),
        "ListTokens": _account(Role.ADMIN, foreign=Foreign.NOTHING),
        "RevokeToken": _account(Role.ADMIN, audited=True, foreign=Foreign.UNCHANGED),
        "ReadAudit": _account(Role.ADMIN, foreign=Foreign.NOTHING),
    },
    "iscp.wire.v1.node.Node": dict.fromkeys(
        (
            *("Coordinate", "Notify", "Interrupt", "Verify", "WorkOnBuildTasks"),
            *("Upkeep", "Progress", "Events", "Logs", "Describe"),
        ),
        _NODES,
    ),
    "grpc.health.v1.Health": dict.fromkeys(("Check", "List", "Watch"), _OPEN),
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": Rule(Scope.CALLER)},
}

RULES: Mapping[str, Rule] = {
    f"/{service}/{method}": rule for service, rules in _BY_SERVICE.items() for method, rule in rules.items()
}
