"""NetworkPolicies held to on one machine, by iptables: no network plugin that does it is to be had there.

Connections between pods alone: those of the machine itself, such as a kubelet's probes, no plugin stops.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from subprocess import CalledProcessError
from typing import Any

from tests.kubernetes.machine import Machine, run

CHAIN = "POLICIES"
EVERY_S = 1.0
JOIN_WAIT_S = 30.0

Document = dict[str, Any]


class Policies:
    """A thread that follows pods and policies; what it cannot express, such as peers of other namespaces, fails it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="policies")
        self._fault: Exception | None = None

    def start(self) -> None:
        run("iptables", "-N", CHAIN)
        run("iptables", "-I", "FORWARD", "-j", CHAIN)
        self._thread.start()

    def stop(self) -> None:
        """Raises what the thread has failed with."""
        self._ended.set()
        self._thread.join(JOIN_WAIT_S)
        if self._fault is not None:
            raise self._fault

    def _follow(self) -> None:
        last: list[str] = []
        while not self._ended.wait(EVERY_S):
            try:
                now = list(rules(*self._found()))
                if now != last:
                    run("iptables-restore", "--noflush", given="\n".join(("*filter", *now, "COMMIT", "")))
                last = now
            except (CalledProcessError, ValueError) as error:
                self._fault = error
                return

    def _found(self) -> tuple[list[Document], list[Document]]:
        words = "get", "networkpolicies,pods", "--all-namespaces", "--output", "json"
        items = json.loads(self._machine.kubectl(*words))["items"]
        kinds = [[each for each in items if each["kind"] == kind] for kind in ("NetworkPolicy", "Pod")]
        return kinds[0], [each for each in kinds[1] if _has_address(each)]


def _has_address(pod: Document) -> bool:
    """What has ended has given its own back."""
    return "podIP" in pod["status"] and pod["status"]["phase"] in ("Pending", "Running")


def rules(policies: list[Document], pods: list[Document]) -> Iterator[str]:
    """The chain, as iptables-restore reads it. Raises ValueError."""
    yield f":{CHAIN} - [0:0]"
    yield f"-A {CHAIN} -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"
    held: set[str] = set()
    for policy in policies:
        spec = policy["spec"]
        if spec["policyTypes"] != ["Ingress"]:
            raise ValueError(f"no rule is known for {spec['policyTypes']}")
        neighbours = [each for each in pods if each["metadata"]["namespace"] == policy["metadata"]["namespace"]]
        for pod in _selected(spec["podSelector"], neighbours):
            held.add(pod["status"]["podIP"])
            for rule in spec["ingress"]:
                yield from _admitted(pod, rule, neighbours)
    for address in sorted(held):
        yield f"-A {CHAIN} -d {address} -j DROP"


def _admitted(pod: Document, rule: Document, neighbours: list[Document]) -> Iterator[str]:
    for named in rule["from"]:
        if set(named) != {"podSelector"}:
            raise ValueError(f"no rule is known for {named}")
        for other in _selected(named["podSelector"], neighbours):
            for port in rule["ports"]:
                way = f"-s {other['status']['podIP']} -d {pod['status']['podIP']}"
                yield f"-A {CHAIN} {way} -p {port['protocol'].lower()} --dport {_number(port['port'], pod)} -j RETURN"


def _selected(selector: Document, pods: list[Document]) -> Iterator[Document]:
    if set(selector) != {"matchLabels"}:
        raise ValueError(f"no rule is known for {selector}")
    wanted = selector["matchLabels"].items()
    return (each for each in pods if wanted <= each["metadata"].get("labels", {}).items())


def _number(port: int | str, pod: Document) -> int:
    if isinstance(port, int):
        return port
    ports = [each for container in pod["spec"]["containers"] for each in container.get("ports", [])]
    return int(next(each["containerPort"] for each in ports if each.get("name") == port))
