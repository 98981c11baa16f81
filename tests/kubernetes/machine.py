"""A Kubernetes of one machine from real parts: etcd, the control plane, containerd, kubelet, kube-proxy and CoreDNS.

It takes addresses, iptables and the machine's own directories for itself, so it runs only in namespaces that
`scripts/test-kubernetes` makes; with them ends whatever was started here.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

from iscp.etcd.server import find_etcd
from iscp.system.child_process import end, spawn, tail
from tests.kubernetes.credentials import Authority

MACHINE = "machine-0"
ADDRESS = "10.200.0.1"
SERVICES = "10.96.0.0/16"
API_SERVICE, DNS_SERVICE = "10.96.0.1", "10.96.0.10"
DNS_PORT = 1053
PODS = "10.244.0.0/16"
STORE = "http://127.0.0.1:12379"
STORE_PEER = "http://127.0.0.1:12380"
START_WAIT_S = 180.0
STOP_WAIT_S = 3.0
"""The API server waits for longer than that for its watchers."""


@dataclass
class Machine:
    """`programs`: where those of Kubernetes are; `root`: an empty directory for all that it writes."""

    programs: Path
    root: Path
    _children: list[tuple[str, subprocess.Popen[bytes]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.authority = Authority.create(self.root / "keys", f"https://{ADDRESS}:6443")
        self.admin = self.authority.kubeconfig("admin", "/O=system:masters/CN=admin")
        self.containerd = self.root / "containerd.sock"

    def start(self, images: list[Path]) -> None:
        """All parts, one after the other; then the machine is Ready and has `images` (archives as docker's)."""
        for words in (
            ("ip", "link", "add", "machine0", "type", "bridge"),
            ("ip", "address", "add", f"{ADDRESS}/24", "dev", "machine0"),
            ("ip", "link", "set", "machine0", "up"),
            ("ip", "route", "add", "default", "dev", "machine0"),
            ("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1"),
        ):
            run(*words)
        self._start_control_plane()
        self._start_containerd(images)
        self._start_node()
        self._start_dns()

    def stop(self) -> None:
        """The last first. Containers' shims are not children of these: they end with the namespace of processes."""
        for _, child in reversed(self._children):
            end(child, STOP_WAIT_S)

    def keep_state(self) -> None:
        """What there is in the cluster, with its events and the pods' logs, beside the parts' own logs."""
        self.kubectl("cluster-info", "dump", "--all-namespaces", f"--output-directory={self.root / 'state'}")

    def kubectl(self, *words: str, given: str = "") -> str:
        """Its stdout. Raises CalledProcessError."""
        return run(str(self.programs / "kubectl"), "--kubeconfig", str(self.admin), *words, given=given)

    def _start_control_plane(self) -> None:
        authority, store = self.authority, self.root / "store"
        self._spawn(
            "etcd",
            *(str(find_etcd()), "--data-dir", str(store), "--unsafe-no-fsync"),
            *("--listen-client-urls", STORE, "--advertise-client-urls", STORE),
            *("--listen-peer-urls", STORE_PEER, "--initial-advertise-peer-urls", STORE_PEER),
            *("--initial-cluster", f"default={STORE_PEER}"),
        )
        names = "kubernetes", "kubernetes.default", "kubernetes.default.svc"
        hosts = (f"IP:{ADDRESS},IP:127.0.0.1,IP:{API_SERVICE}", *(f"DNS:{each}" for each in names))
        authority.certify("server", "/CN=kube-apiserver", ",".join(hosts))
        self._start_api_server()
        self.wait("the API server serves", lambda: self.kubectl("get", "--raw", "/readyz"))
        scheduler = authority.kubeconfig("scheduler", "/CN=system:kube-scheduler")
        self._spawn("kube-scheduler", f"--kubeconfig={scheduler}", "--leader-elect=false")
        controllers = authority.kubeconfig("controllers", "/CN=system:kube-controller-manager")
        self._spawn(
            "kube-controller-manager",
            *(f"--kubeconfig={controllers}", "--leader-elect=false", "--use-service-account-credentials"),
            f"--root-ca-file={authority.cert('ca')}",
            f"--service-account-private-key-file={authority.key('accounts')}",
            *("--allocate-node-cidrs", f"--cluster-cidr={PODS}", f"--service-cluster-ip-range={SERVICES}"),
        )

    def _start_api_server(self) -> None:
        authority = self.authority
        self._spawn(
            "kube-apiserver",
            *(f"--etcd-servers={STORE}", f"--advertise-address={ADDRESS}", "--secure-port=6443"),
            *(f"--client-ca-file={authority.cert('ca')}", "--authorization-mode=Node,RBAC"),
            f"--tls-cert-file={authority.cert('server')}",
            f"--tls-private-key-file={authority.key('server')}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={authority.root / 'accounts.pub'}",
            f"--service-account-signing-key-file={authority.key('accounts')}",
            *(f"--service-cluster-ip-range={SERVICES}", "--enable-admission-plugins=NodeRestriction"),
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-certificate-authority={authority.cert('ca')}",
            f"--kubelet-client-certificate={authority.cert('admin')}",
            f"--kubelet-client-key={authority.key('admin')}",
        )

    def _start_containerd(self, images: list[Path]) -> None:
        networks = self.root / "networks"
        networks.mkdir()
        (networks / "10-pods.conflist").write_text(json.dumps(_pod_network()))
        config = self.root / "containerd.toml"
        config.write_text(
            f"""version = 2
root = "{self.root / "containerd"}"
state = "/run/containerd"
[grpc]
  address = "{self.containerd}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{networks}"
"""
        )
        self._spawn("containerd", "containerd", "--config", str(config))
        self.wait("containerd serves", lambda: run("ctr", "--address", str(self.containerd), "version"))
        for each in images:
            self._images("import", str(each))

    def tag(self, image: str, name: str) -> None:
        """A second name of an image."""
        self._images("tag", image, name)

    def _images(self, *words: str) -> None:
        run("ctr", "--address", str(self.containerd), "--namespace", "k8s.io", "images", *words)

    def _start_node(self) -> None:
        kubeconfig = self.authority.kubeconfig("kubelet", f"/O=system:nodes/CN=system:node:{MACHINE}")
        self.authority.certify("kubelet-server", f"/CN={MACHINE}", f"IP:{ADDRESS},DNS:{MACHINE}")
        config, resolver = self.root / "kubelet.json", self.root / "resolv.conf"
        resolver.write_text("")  # beyond the cluster no name is known
        config.write_text(json.dumps(self._kubelet(resolver)))
        self._spawn(
            "kubelet",
            *(f"--config={config}", f"--kubeconfig={kubeconfig}", f"--root-dir={self.root / 'kubelet'}"),
            *(f"--hostname-override={MACHINE}", f"--node-ip={ADDRESS}"),
        )
        proxy = self.authority.kubeconfig("proxy", "/CN=system:kube-proxy")
        self._spawn(
            "kube-proxy",
            *(f"--kubeconfig={proxy}", f"--hostname-override={MACHINE}", f"--cluster-cidr={PODS}"),
            *("--proxy-mode=iptables", "--conntrack-max-per-core=0"),
        )
        ready = "get", "node", MACHINE, "--output", "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        self.wait("the machine is Ready", lambda: self.kubectl(*ready) == "True")
        self.wait("service accounts are made", lambda: self.kubectl("get", "serviceaccount", "default"))

    def _kubelet(self, resolver: Path) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.authority.cert("ca"))},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(self.authority.cert("kubelet-server")),
            "tlsPrivateKeyFile": str(self.authority.key("kubelet-server")),
            "containerRuntimeEndpoint": f"unix://{self.containerd}",
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDomain": "cluster.local",
            "clusterDNS": [DNS_SERVICE],
            "resolvConf": str(resolver),
            # Of a disk that others fill nothing is given back.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "50Mi"},
        }

    def _start_dns(self) -> None:
        corefile = self.root / "Corefile"
        corefile.write_text(
            f"cluster.local:{DNS_PORT} {{\n errors\n ready\n kubernetes cluster.local {{\n"
            f"  kubeconfig {self.admin} own\n }}\n}}\n"
        )
        self._spawn("dns", "-conf", str(corefile))
        self.kubectl("apply", "--filename", "-", given=json.dumps(_dns_service()))
        self.wait("DNS serves", lambda: urlopen("http://127.0.0.1:8181/ready", timeout=1.0))

    def _spawn(self, name: str, *words: str) -> None:
        own = self.programs / name
        command = [str(own), *words] if own.exists() else list(words)
        log = self.root / f"{name}.log"
        environ = dict(os.environ) | {"TMPDIR": str(self.root)}
        self._children.append((name, spawn(command, log, environ)))

    def wait(self, what: str, true: Callable[[], object], timeout_s: float = START_WAIT_S) -> None:
        """Until `true` is so, and does not fail; a part that has ended meanwhile fails it at once."""
        deadline_s, fault = time.monotonic() + timeout_s, ""
        while True:
            try:
                if true():
                    return
            except (subprocess.CalledProcessError, OSError) as error:
                fault = str(error.stderr) if isinstance(error, subprocess.CalledProcessError) else str(error)
            for name, child in self._children:
                if child.poll() is not None:
                    raise AssertionError(f"{name} has ended ({child.returncode}):\n{tail(self.root / f'{name}.log')}")
            assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}: {fault}"
            time.sleep(0.2)


def run(*words: str, given: str = "") -> str:
    """A command's stdout. Raises CalledProcessError, with what it wrote to stderr as a note."""
    try:
        return subprocess.run(words, input=given, capture_output=True, text=True, check=True).stdout
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr)
        raise


def _pod_network() -> dict[str, object]:
    addresses = {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "pods0", "isGateway": True, "ipMasq": True, "hairpinMode": True}
    plugins = [{**bridge, "ipam": addresses}, {"type": "portmap", "capabilities": {"portMappings": True}}]
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": plugins}


def _dns_service() -> dict[str, object]:
    """CoreDNS is a process of the machine, not a pod: its service has an address that was written by hand."""
    meta = {"name": "kube-dns", "namespace": "kube-system"}
    port = {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": DNS_PORT}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": meta}
    slice_meta = {**meta, "labels": {"kubernetes.io/service-name": "kube-dns"}}
    addresses = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": slice_meta}
    items = [
        {**service, "spec": {"clusterIP": DNS_SERVICE, "ports": [port]}},
        {
            **addresses,
            "addressType": "IPv4",
            "ports": [{"name": "dns", "port": DNS_PORT, "protocol": "UDP"}],
            "endpoints": [{"addresses": [ADDRESS], "conditions": {"ready": True}}],
        },
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}
