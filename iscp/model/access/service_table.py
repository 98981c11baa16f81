"""The roles of callers, and the one table of gRPC's services: a row says all that nodes know of a method.

Authorization, the audit, forwarding to the owner, the bounds of waits, the gateway and its OpenAPI document follow from
the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from functools import partial
from math import inf

# --- roles, and the callers who have one ------------------------------------------------------------------------------


def is_account(name: str) -> bool:
    """Return whether it can be the name of an account: at most 128 characters, without blanks around them."""
    return _ACCOUNT_NAME.fullmatch(name) is not None


class Role(StrEnum):
    """A role in an account; each may do what those before it may."""

    VIEWER = "viewer"
    EDITOR = "editor"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, needed: Role) -> bool:
        """Return whether who has this role may do what needs that one."""
        return _RANKS[self] >= _RANKS[needed]


_RANKS = {role: rank for rank, role in enumerate(Role)}


class KnownBy(StrEnum):
    """The proof by which a caller is known."""

    CERTIFICATE = "certificate"
    TOKEN = "token"
    OIDC = "oidc"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller, in one account. `name` is the certificate's name, a token's id, or `oidc:` and a subject.

    With `everywhere` the account is the cluster-wide one, and may act for all others. `expires_at_s` is the time (Unix
    seconds) from which a provider's word on a caller is no longer valid; it is not set for other callers.
    """

    account: str
    role: Role
    name: str
    known_by: KnownBy
    everywhere: bool = False
    expires_at_s: float = inf

    @property
    def by_token(self) -> bool:
        """Return whether the caller is known by what a call carries in `authorization`."""
        return self.known_by in (KnownBy.TOKEN, KnownBy.OIDC)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a caller: a token, iscp's or a provider's (empty: none), and the names in a verified
    certificate.
    """

    token: str = ""
    names: frozenset[str] = frozenset()


# --- services and their methods ---------------------------------------------------------------------------------------
# A method without a row is refused. Cursors of changefeeds do not go over gRPC: applications write them to etcd
# themselves (docs/authorization.md).


class Scope(Enum):
    """The accounts that a method concerns."""

    OPEN = auto()
    """No account: the method is answered without knowing who calls."""
    NODES = auto()
    """Nodes alone, which are known by their certificate at the method itself."""
    CALLER = auto()
    """No account: everybody who is known may call it."""
    ACCOUNT = auto()
    """The accounts that the request names; where it names none, the caller's own."""
    CLUSTER = auto()
    """All accounts: the method is for the cluster-wide account."""


class Foreign(Enum):
    """The answer to a caller who names things of another account: the same, whether they exist or not."""

    MISSING = auto()
    """The answer is that of a table without jobs."""
    NOTHING = auto()
    """The answer is empty, or MISSING where a table is named."""
    UNCHANGED = auto()
    """The answer is that nothing has changed, as there was nothing."""
    NO_INDEX = auto()
    """The answer is that of a place that no job of the account has an index at."""
    REFUSED = auto()
    """The answer is that the caller may not do this there; methods that make something give it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One method; `foreign` counts where the scope is ACCOUNT.

    `changes`: where no answer came, something may have changed. `waits`: it answers when something has happened, which
    may take as long as its request says. `lasts`: it is a stream without an end. `everybody_with` and
    `everybody_without` name a field of the request, as a path with dots: the call concerns all accounts if that is set,
    or not set.
    """

    scope: Scope
    role: Role = Role.VIEWER
    audited: bool = False
    foreign: Foreign = Foreign.MISSING
    changes: bool = False
    waits: bool = False
    lasts: bool = False
    everybody_with: str = ""
    everybody_without: str = ""


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """The rules of a service, by the names of its methods.

    `forwarded`: a node that is not the owner passes the calls on to it. `gateway`: it is served as JSON over HTTP too.
    """

    name: str
    rules: Mapping[str, Rule]
    forwarded: bool = False
    gateway: bool = False


_ACCOUNT, _CLUSTER = partial(Rule, Scope.ACCOUNT), partial(Rule, Scope.CLUSTER)
_NODES, _OPEN = Rule(Scope.NODES), Rule(Scope.OPEN)
_VIEW, _LIST = _ACCOUNT(), _ACCOUNT(foreign=Foreign.NOTHING)
_EDIT = _ACCOUNT(Role.EDITOR, audited=True, changes=True)
_OPERATE = _CLUSTER(Role.OPERATOR, audited=True, changes=True)

_ADMIN = ServiceRow(
    "iscp.wire.v1.Admin",
    {
        "Register": _ACCOUNT(Role.EDITOR, audited=True, foreign=Foreign.REFUSED, changes=True),
        # Reads what is named, and has Spark analyze SQL.
        "Check": _ACCOUNT(Role.EDITOR, audited=True, foreign=Foreign.REFUSED),
        "Unregister": _ACCOUNT(Role.EDITOR, audited=True, foreign=Foreign.UNCHANGED, changes=True),
        "Pause": _EDIT,
        "Resume": _EDIT,
        "Resync": _EDIT,
        "UpdateJobs": _EDIT,
        "ChangeJobs": _EDIT,
        "ListJobs": _LIST,
        "CountJobs": _LIST,
        "GetJob": _VIEW,
        "WaitJob": _ACCOUNT(waits=True),
        "History": _VIEW,
        # As often as users look, and no more than a search shows: not audited.
        "ListDeadLetters": _VIEW,
        # Reads source and target as a whole, and with `repair` writes.
        "VerifyJob": _ACCOUNT(Role.EDITOR, audited=True, changes=True, waits=True),
        # Reads any table that its query names, and has Spark analyze that.
        "ExplainConsumer": _ACCOUNT(Role.EDITOR, audited=True),
        # As often as a source is committed to, and nothing is written: not audited.
        "Notify": _ACCOUNT(Role.EDITOR, changes=True),
        "GetCluster": _CLUSTER(),
    },
    forwarded=True,
    gateway=True,
)

_OPERATOR = ServiceRow(
    "iscp.wire.v1.Operator",
    {
        "ChangeNode": _OPERATE,
        "ChangeShards": _OPERATE,
        "Reshard": _OPERATE,
        "Rebalance": _OPERATE,
        "GetPlacement": _LIST,
        "GetEvents": _ACCOUNT(foreign=Foreign.NOTHING, waits=True),
        # Of one job; a node's whole log is for the cluster-wide account.
        "GetLogs": _ACCOUNT(Role.OPERATOR, everybody_with="node_id"),
        # A registration of another kind is refused with the same names.
        "ListConsumers": Rule(Scope.CALLER),
    },
    forwarded=True,
)

_BUILDS = ServiceRow(
    "iscp.wire.v1.Builds",
    {
        "GetBuilds": _LIST,
        # Of one job; all jobs of a table, of whichever account, are for the cluster-wide one.
        "AbortBuild": _ACCOUNT(Role.EDITOR, audited=True, changes=True, everybody_without="job.name"),
        "PrioritizeBuild": _OPERATE,
        "ReshardBuild": _OPERATE,
    },
    forwarded=True,
)

_SEARCH = ServiceRow(
    "iscp.wire.v1.Search",
    # The owner answers: its book alone says whose target a place is. As often as users search: not audited.
    {"Search": _ACCOUNT(foreign=Foreign.NO_INDEX, waits=True)},
    forwarded=True,
    gateway=True,
)

_FEEDS = ServiceRow(
    "iscp.wire.v1.Feeds",
    # Whichever node is called reads the feed: the owner is called only for whether there is such a job. As often as
    # readers follow: not audited.
    {"ReadFeed": _ACCOUNT(waits=True)},
    gateway=True,
)

_ACCESS = ServiceRow(
    "iscp.wire.v1.Access",
    {
        "CreateToken": _ACCOUNT(Role.ADMIN, audited=True, foreign=Foreign.REFUSED, changes=True),
        "ListTokens": _ACCOUNT(Role.ADMIN, foreign=Foreign.NOTHING),
        "RevokeToken": _ACCOUNT(Role.ADMIN, audited=True, foreign=Foreign.UNCHANGED, changes=True),
        "ReadAudit": _ACCOUNT(Role.ADMIN, foreign=Foreign.NOTHING),
    },
)

_NODE = ServiceRow(
    "iscp.wire.v1.node.Node",
    {
        "Coordinate": Rule(Scope.NODES, lasts=True),
        **dict.fromkeys(("Notify", "Interrupt", "Verify", "WorkOnBuildTasks"), _NODES),
        **dict.fromkeys(("Upkeep", "Progress", "Events", "Logs", "Describe"), _NODES),
    },
)

SERVICES: tuple[ServiceRow, ...] = (
    _ADMIN,
    _OPERATOR,
    _BUILDS,
    _SEARCH,
    _FEEDS,
    _ACCESS,
    _NODE,
    ServiceRow("grpc.health.v1.Health", dict.fromkeys(("Check", "List", "Watch"), _OPEN)),
    ServiceRow("grpc.reflection.v1alpha.ServerReflection", {"ServerReflectionInfo": Rule(Scope.CALLER)}),
)

SERVICE_OF: Mapping[str, ServiceRow] = {
    f"/{service.name}/{method}": service for service in SERVICES for method in service.rules
}
"""The service of each method, by the method's full name in gRPC."""

RULES: Mapping[str, Rule] = {name: service.rules[name.rpartition("/")[2]] for name, service in SERVICE_OF.items()}
"""The rule of each method, by the method's full name in gRPC."""


def methods_that(holds: Callable[[ServiceRow, Rule], bool]) -> frozenset[str]:
    """Return the full names of the methods for which `holds` is True of their service and their rule."""
    return frozenset(name for name, rule in RULES.items() if holds(SERVICE_OF[name], rule))


_ACCOUNT_NAME = re.compile(r"\S(.{0,126}\S)?")
