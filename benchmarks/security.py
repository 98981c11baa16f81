"""What mutual TLS and authorization cost: `python -m benchmarks.security [--json]`.

Clusters in turn: without either; with mutual TLS to users, between nodes and to etcd; and with that and callers that
are known by tokens, whose calls both nodes decide. Nodes are in processes of their own with real etcd and gRPC, and an
engine that does nothing. What is measured of each, the median of several counting:

- `calls_per_s`: threads of this process read jobs' statuses at a node that is not the owner, on connections that are
  open; it forwards them to the owner. So each call goes through two connections.
- `dispatches_per_s`: `shards_per_s` of `benchmarks.dispatch`, with fewer nodes.
- `revoked_refused_s`: from the answer to `token revoke` until the last node has refused the token; the worst counts.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.bare_cluster import BareCluster, BareNode, until
from benchmarks.dispatch import measure_cluster
from benchmarks.progress import report_progress
from iscp.client.admin_client import Client
from iscp.model.access.security_config import AccountConfig
from iscp.model.access.service_table import Role
from iscp.model.values.errors import NotAuthenticated

AIM_RATIO = 0.8
AIM_REVOKED_S = 5.0
NODES = 3
CALLERS = 8
CALL_S = 4.0
ROUNDS = 3
SHARDS = 10_000
TTL_S, MARGIN_S = 30.0, 2.0
ROOT = "root"
ACCOUNTS = {"system": AccountConfig(certificates={ROOT: Role.ADMIN})}


class Kind(StrEnum):
    """How a cluster is secured."""

    PLAIN = "plain"
    TLS = "tls"
    GUARDED = "guarded"


@dataclass(frozen=True, slots=True)
class Speeds:
    """`revoked_refused_s` is 0 where nobody has a token."""

    calls_per_s: float
    dispatches_per_s: float
    revoked_refused_s: float = 0.0


def measure(shards: int, kind: Kind) -> Speeds:
    accounts: Mapping[str, AccountConfig] = ACCOUNTS if kind is Kind.GUARDED else {}
    with tempfile.TemporaryDirectory(prefix="iscp-security-") as directory:
        tls = kind is not Kind.PLAIN
        cluster = BareCluster(Path(directory), NODES, shards, TTL_S, MARGIN_S, tls=tls, accounts=accounts)
        try:
            dispatched = measure_cluster(cluster).shards_per_s
            if kind is not Kind.GUARDED:
                return Speeds(calls_per_s(cluster), dispatched)
            with connect(cluster, cluster.members[0], ROOT) as root:
                token, record = root.access.create_token(Role.VIEWER, ttl_s=600)
                for node in cluster.members:
                    until("the token is known", lambda node=node: answers(cluster, node, token))  # type: ignore[misc]
                calls = calls_per_s(cluster, token)
                root.access.revoke_token(record.token_id)
                return Speeds(calls, dispatched, refused_s(cluster, token))
        finally:
            cluster.stop()


def connect(cluster: BareCluster, node: BareNode, name: str = "client", token: str | None = None) -> Client:
    return Client(node.config.address, tls=cluster.files(name) if cluster.tls else None, token=token)


def answers(cluster: BareCluster, node: BareNode, token: str) -> bool:
    with connect(cluster, node, token=token) as client:
        try:
            client.count()
        except NotAuthenticated:
            return False
    return True


def refused_s(cluster: BareCluster, token: str) -> float:
    """How long from now on until no node takes the token."""
    began_s = time.monotonic()
    for node in cluster.members:
        until("the token is refused", lambda node=node: not answers(cluster, node, token))  # type: ignore[misc]
    return time.monotonic() - began_s


def calls_per_s(cluster: BareCluster, token: str | None = None, seconds: float = CALL_S) -> float:
    """Calls that were answered within `seconds`; one that fails ends the measurement."""
    owner = cluster.owner()
    entry = next(node for node in cluster.members if node is not owner)
    counts, failures, begin = [0] * CALLERS, list[Exception](), threading.Barrier(CALLERS + 1)
    until_s = [float("inf")]

    def use(number: int) -> None:
        with connect(cluster, entry, token=token) as client:
            client.cluster()  # connects
            begin.wait()
            try:
                while time.monotonic() < until_s[0]:
                    client.status(f"/lake/{number}", "copy")
                    counts[number] += 1
            except Exception as error:  # noqa: BLE001  (raised below, by the thread that measures)
                failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    until_s[0] = time.monotonic() + seconds + 1.0
    begin.wait()
    began_s = time.monotonic()
    until_s[0] = began_s + seconds
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(counts) / (time.monotonic() - began_s)


PAIRS = (
    (Kind.TLS, Kind.PLAIN, "mutual TLS", "without"),
    (Kind.GUARDED, Kind.TLS, "authorization", "with mutual TLS alone"),
    (Kind.GUARDED, Kind.PLAIN, "mutual TLS and authorization", "without"),
)


def ratios(speeds: Mapping[Kind, list[Speeds]], name: str) -> Iterable[tuple[dict[str, object], dict[str, object]]]:
    """Figures and the aim, of each kind against one that is less secured."""
    middle = {kind: median(getattr(each, name) for each in speeds[kind]) for kind in Kind}
    for kind, base, words, against in PAIRS:
        share = round(middle[kind] / middle[base], 2)
        figures: dict[str, object] = {f"{name}_{kind}": round(middle[kind]), f"{name}_{base}": round(middle[base])}
        figures[f"{name.removesuffix('_per_s')}_ratio_{kind}_to_{base}"] = share
        aim = f"{name} with {words} >= {AIM_RATIO:g} of {against}"
        yield figures, {"aim": aim, "measured": share, "met": share >= AIM_RATIO}


@click.command()
@click.option("--shards", type=click.IntRange(min=CALLERS), default=SHARDS, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=ROUNDS, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(shards: int, rounds: int, as_json: bool) -> None:
    """Measure calls and dispatches with mutual TLS, and authorization, against without."""
    speeds: dict[Kind, list[Speeds]] = {kind: [] for kind in Kind}
    for number in range(rounds):
        kinds = list(Kind)
        for kind in kinds if number % 2 == 0 else reversed(kinds):  # none is always the first
            speeds[kind].append(measure(shards, kind))
            report_progress(kind.value, round=number, **asdict(speeds[kind][-1]))
    result: dict[str, Any] = {"benchmark": "security", "cpus": os.cpu_count(), "nodes": NODES, "shards": shards}
    aims: list[dict[str, object]] = []
    for name in ("calls_per_s", "dispatches_per_s"):
        for figures, aim in ratios(speeds, name):
            result |= figures
            aims.append(aim)
    worst_s = round(max(each.revoked_refused_s for each in speeds[Kind.GUARDED]), 2)
    aim_text = f"a revoked token is refused by every node within {AIM_REVOKED_S:g} s"
    aims.append({"aim": aim_text, "measured": worst_s, "met": worst_s <= AIM_REVOKED_S})
    rounds_of = {kind.value: [asdict(each) for each in speeds[kind]] for kind in Kind}
    result |= {"revoked_refused_s": worst_s, "rounds": rounds_of, "aims": aims}
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
