"""The chart's release on the machine: what helm does to it, and who calls it."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iscp.client.admin_client import Client
from iscp.system.tls.tls_files import TlsFiles
from tests import quick_spark
from tests.chart.rendering import tool
from tests.chart.values_file import CHART
from tests.kubernetes.machine import Machine, run

NAMESPACE = "lake"
RELEASE = "lake"
NODES = "lake-iscp"
ETCD = "lake-iscp-etcd"
IMAGE, NEXT_IMAGE = "test", "next"
ETCD_MEMBERS = 3
HELM_WAIT_S = 1_200
USER = 10001


@dataclass
class Release:
    """Named `lake`, with TLS and authentication, in a namespace that admits restricted pods alone."""

    machine: Machine
    lake: Path
    probe: dict[str, float] = field(default_factory=lambda: {"interval_min_s": 1.0, "interval_max_s": 2.0})
    _certs: Path = field(init=False)

    def prepare(self) -> None:
        """What an administrator gives: volumes, and the secret of the nodes' certificates."""
        for each in (self.lake, self.lake / "joblog", self.lake / "derived"):
            each.mkdir()
            each.chmod(0o777)
        self._certs = self.machine.root / "certs"
        iscp = (sys.executable, "-m", "iscp.cli.iscp", "certs")
        directory = ("--dir", str(self._certs))
        run(*iscp, "init", *directory)
        hosts = [word for each in (NODES, f"*.{NODES}-nodes.{NAMESPACE}.svc") for word in ("--host", each)]
        run(*iscp, "issue", "node", "nodes", *directory, *hosts)
        run(*iscp, "issue", "client", "ana", *directory)
        files = {"ca.crt": "ca.pem", "tls.crt": "nodes.pem", "tls.key": "nodes.key"}
        given = [f"--from-file={key}={self._certs / file}" for key, file in files.items()]
        self.machine.kubectl("apply", "--filename", "-", given=json.dumps(self._manifests()))
        self.kubectl("create", "secret", "generic", "lake-tls", *given)

    def _manifests(self) -> dict[str, Any]:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "lake", "namespace": NAMESPACE},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "volumeName": "lake",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        volumes = [_volume("lake", self.lake, "ReadWriteMany", f"{NAMESPACE}/lake")]
        for member in range(ETCD_MEMBERS):
            directory = self.machine.root / f"member-{member}"
            directory.mkdir()
            os.chown(directory, USER, USER)
            claimed = f"{NAMESPACE}/data-{NODES}-etcd-{member}"
            volumes.append(_volume(f"member-{member}", directory, "ReadWriteOnce", claimed))
        return {"apiVersion": "v1", "kind": "List", "items": [namespace, *volumes, claim]}

    def values(self, replicas: int, tag: str) -> dict[str, Any]:
        return {
            "replicas": replicas,
            "image": {"repository": "localhost/iscp", "tag": tag, "pullPolicy": "Never"},
            "config": {
                "log": {"uri": str(self.lake / "joblog")},
                "storage": {"self_test": [str(self.lake / "derived")]},
                "spark": {"driver_memory_mb": 1024, "conf": quick_spark.CONF},
                "probe": self.probe,
                "accounts": {"acme": {"certificates": {"ana": "editor"}}},
            },
            "tls": {"secret": "lake-tls"},
            "extraVolumes": [{"name": "lake", "persistentVolumeClaim": {"claimName": "lake"}}],
            "extraVolumeMounts": [{"name": "lake", "mountPath": str(self.lake)}],
            "etcd": {
                "image": {"repository": "localhost/etcd", "tag": "test", "byTag": True, "pullPolicy": "Never"},
                "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
            },
            "probes": {"startupSeconds": 600},
            "resources": {"requests": {"cpu": "50m", "memory": "1Gi"}, "limits": {"memory": "3Gi"}},
        }

    def install(self, replicas: int) -> None:
        self._change(("install",), self.values(replicas, IMAGE))

    def upgrade(self, replicas: int, tag: str = IMAGE) -> None:
        self._change(("upgrade", "--install"), self.values(replicas, tag))

    def rollback(self, revision: int) -> None:
        self.helm("rollback", RELEASE, str(revision), *self._waiting())

    def restart(self) -> None:
        """All nodes, one after the other, as an upgrade does."""
        self.kubectl("rollout", "restart", f"statefulset/{NODES}")
        self.kubectl("rollout", "status", f"statefulset/{NODES}", f"--timeout={HELM_WAIT_S}s")

    def _change(self, verb: tuple[str, ...], values: dict[str, Any]) -> None:
        self.helm(*verb, RELEASE, str(CHART), "--values", "-", *self._waiting(), given=json.dumps(values))

    @staticmethod
    def _waiting() -> tuple[str, ...]:
        return "--wait", f"--timeout={HELM_WAIT_S}s"

    def helm(self, *words: str, given: str = "") -> str:
        access = "--kubeconfig", str(self.machine.admin), "--namespace", NAMESPACE
        return run(str(tool("helm")), *words, *access, given=given)

    def kubectl(self, *words: str) -> str:
        return self.machine.kubectl("--namespace", NAMESPACE, *words)

    def pods(self, component: str = "node") -> list[dict[str, Any]]:
        selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component={component}"
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return found

    def images(self) -> set[str]:
        """What the nodes run."""
        return {each["spec"]["containers"][0]["image"] for each in self.pods()}

    def ready(self, component: str = "node") -> list[str]:
        """The names of pods that are ready, and are not about to end."""
        return [
            each["metadata"]["name"]
            for each in self.pods(component)
            if "deletionTimestamp" not in each["metadata"] and _is_ready(each)
        ]

    def connect(self) -> Client:
        """As a user does, by the service: whichever node it leads to."""
        address = self.kubectl("get", "service", NODES, "--output", "jsonpath={.spec.clusterIP}")
        ca, cert, key = (self._certs / name for name in ("ca.pem", "ana.pem", "ana.key"))
        return Client(f"{address}:7430", tls=TlsFiles(ca, cert, key, "node.default.iscp"), timeout_s=60.0)

    def reached(self, name: str, labels: dict[str, str]) -> dict[str, bool]:
        """Which of nodes and etcd a pod with these labels can connect to."""
        addresses = {"nodes": (NODES, 7430), "each node": (f"{NODES}-0.{NODES}-nodes", 7430), "etcd": (ETCD, 2379)}
        program = f"""
import json, socket
def reach(address):
    try:
        socket.create_connection(address, 3).close()
    except OSError:
        return False
    return True
print(json.dumps({{name: reach(tuple(each)) for name, each in {addresses!r}.items()}}))
"""
        unable = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        container = {"name": "caller", "image": f"localhost/iscp:{IMAGE}", "imagePullPolicy": "Never"}
        spec = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{**container, "command": ["python", "-c", program], "securityContext": unable}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
        self.machine.kubectl("--namespace", NAMESPACE, "apply", "--filename", "-", given=json.dumps(pod))
        self.kubectl("wait", f"pod/{name}", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
        found: dict[str, bool] = json.loads(self.kubectl("logs", name))
        self.kubectl("delete", "pod", name)
        return found

    def signal(self, pod: str, number: signal.Signals) -> None:
        """To the first process of the node's container: by SIGKILL all of them end, as when memory is out."""
        (pid,) = (pid for pid in _processes(f"ISCP_NODE_ID={pod}") if _parent_is_shim(pid))
        os.kill(pid, number)


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _volume(name: str, directory: Path, mode: str, claim: str) -> dict[str, Any]:
    """A directory of the machine, for one claim."""
    namespace, _, claimed = claim.partition("/")
    spec = {
        "capacity": {"storage": "2Gi"},
        "accessModes": [mode],
        "hostPath": {"path": str(directory)},
        "claimRef": {"namespace": namespace, "name": claimed},
    }
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def _processes(variable: str) -> list[int]:
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                environ = (directory / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended meanwhile
            if variable.encode() in environ:
                found.append(int(directory.name))
    return found


def _parent_is_shim(pid: int) -> bool:
    parent = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("PPid:"))
    return "containerd-shim" in Path(f"/proc/{parent.split()[1]}/cmdline").read_text()
