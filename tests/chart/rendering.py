"""Runs helm on the chart, as its users do, and takes apart what comes of it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from iscp.spark.session import default_cache_dir
from tests.chart.values_file import CHART

KUBERNETES = ("1.29", "1.37")
"""The oldest and the newest that the chart is for; the first is that of Chart.yaml."""

HELM_TIMEOUT_S = 120.0

Manifest = dict[str, Any]


class HelmRefusedError(Exception):
    """What helm says is wrong."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """All manifests of one set of values."""

    manifests: tuple[Manifest, ...]

    def of(self, kind: str, component: str = "") -> list[Manifest]:
        return [
            each
            for each in self.manifests
            if each["kind"] == kind and component in ("", each["metadata"]["labels"]["app.kubernetes.io/component"])
        ]

    def only(self, kind: str, component: str = "") -> Manifest:
        (manifest,) = self.of(kind, component)
        return manifest

    def pods(self) -> Iterator[Manifest]:
        """What has `metadata` and `spec` of a pod: templates, and pods of tests."""
        yield from (each["spec"]["template"] for kind in ("StatefulSet", "Job") for each in self.of(kind))
        yield from self.of("Pod")

    def container(self, component: str = "node") -> Manifest:
        (container,) = self.only("StatefulSet", component)["spec"]["template"]["spec"]["containers"]
        assert isinstance(container, dict)
        return container

    def environment(self, name: str = "iscp-0") -> dict[str, str]:
        """The variables of a node's container, as its kubelet sets them but for those that come from secrets."""
        found: dict[str, str] = {}
        for each in self.container()["env"]:
            source = each.get("valueFrom", {})
            if source.get("fieldRef", {}).get("fieldPath") == "metadata.name":
                found[each["name"]] = name
            elif "secretKeyRef" in source:
                found[each["name"]] = f"from {source['secretKeyRef']['name']}"
            else:
                value = each["value"]
                for known, text in found.items():
                    value = value.replace(f"$({known})", text)
                found[each["name"]] = value
        return found


def tool(name: str) -> Path:
    """A program that `scripts/setup --chart` has installed."""
    sums = hashlib.sha256((CHART.parent / "tools.txt").read_bytes()).hexdigest()[:16]
    path = default_cache_dir(os.environ) / f"chart-tools-{sums}" / "bin" / name
    assert path.exists(), f"{path} is not there: run scripts/setup --chart"
    return path


def render(values: Mapping[str, Any], kubernetes: str = KUBERNETES[-1]) -> Rendered:
    """What `helm install lake` would make in the namespace `data`. Raises HelmRefusedError."""
    text = run_helm(
        ["template", "lake", str(CHART), "--namespace", "data", "--kube-version", kubernetes, "--values", "-"], values
    )
    return Rendered(tuple(each for each in yaml.safe_load_all(text) if each))


def run_helm(arguments: list[str], values: Mapping[str, Any]) -> str:
    """What helm writes, given `values` on its standard input. Raises HelmRefusedError."""
    done = subprocess.run(
        [str(tool("helm")), *arguments],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=HELM_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise HelmRefusedError(done.stdout + done.stderr)
    return done.stdout
