"""The authority of a Kubernetes control plane, and what its parts show each other."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

DAYS = "2"


@dataclass(frozen=True, slots=True)
class Authority:
    """Keys and certificates in `root`, made by openssl; `server` is the API server's URL."""

    root: Path
    server: str

    @classmethod
    def create(cls, root: Path, server: str) -> Authority:
        root.mkdir()
        authority = cls(root, server)
        _request(authority.key("ca"), authority.cert("ca"), "/CN=kubernetes-ca", "keyUsage=critical,keyCertSign")
        _openssl("genrsa", "-out", str(authority.key("accounts")), "2048")
        _openssl("rsa", "-in", str(authority.key("accounts")), "-pubout", "-out", str(root / "accounts.pub"))
        return authority

    def key(self, name: str) -> Path:
        return self.root / f"{name}.key"

    def cert(self, name: str) -> Path:
        return self.root / f"{name}.crt"

    def certify(self, name: str, subject: str, hosts: str = "DNS:client") -> None:
        """`subject`: as openssl takes it; `hosts`: as `subjectAltName` names them."""
        usages = "extendedKeyUsage=serverAuth,clientAuth"
        signer = "-CA", str(self.cert("ca")), "-CAkey", str(self.key("ca"))
        _request(self.key(name), self.cert(name), subject, usages, f"subjectAltName={hosts}", options=signer)

    def kubeconfig(self, name: str, subject: str) -> Path:
        """A client of the API server: YAML, of which JSON is a part."""
        self.certify(name, subject)
        files = {"client-certificate": str(self.cert(name)), "client-key": str(self.key(name))}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "own", "cluster": {"server": self.server, "certificate-authority": str(self.cert("ca"))}}
            ],
            "users": [{"name": name, "user": files}],
            "contexts": [{"name": "own", "context": {"cluster": "own", "user": name}}],
            "current-context": "own",
        }
        path = self.root / f"{name}.kubeconfig"
        path.write_text(json.dumps(document))
        return path


def _request(key: Path, cert: Path, subject: str, *extensions: str, options: tuple[str, ...] = ()) -> None:
    added = [word for each in extensions for word in ("-addext", each)]
    new_key = "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)
    _openssl("req", "-x509", *options, *new_key, "-days", DAYS, "-subj", subject, *added)


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)
