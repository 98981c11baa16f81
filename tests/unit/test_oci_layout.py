"""The chart's OCI layout is whole, the same bytes each time, and what Helm itself takes from a registry."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.chart.rendering import tool
from tests.chart.values_file import CHART
from tests.releasing.oci_layout import CHART_TYPE, CONFIG_TYPE, MANIFEST_TYPE, write_layout

EPOCH_S = 1_893_542_400
Files = Mapping[str, bytes]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("chart")
    subprocess.run([tool("helm"), "package", CHART, "--destination", out], check=True, capture_output=True)
    (made,) = out.glob("iscp-*.tgz")
    return made


@pytest.fixture(scope="module")
def layout(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("layout") / "iscp.oci.tar"
    write_layout(package, out, EPOCH_S)
    return out


def files_of(layout: Path) -> Files:
    with tarfile.open(layout) as archive:
        return {name: content.read() for name in archive.getnames() if (content := archive.extractfile(name))}


def blob(files: Files, described: Mapping[str, Any]) -> bytes:
    """The content that a descriptor names, which has its size and digest."""
    kind, _, digest = described["digest"].partition(":")
    content = files[f"blobs/{kind}/{digest}"]
    assert (kind, len(content), hashlib.sha256(content).hexdigest()) == ("sha256", described["size"], digest)
    return content


def test_a_layout_has_the_package_and_what_helm_says_of_it(layout: Path, package: Path) -> None:
    files = files_of(layout)
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (described,) = json.loads(files["index.json"])["manifests"]
    assert described["mediaType"] == MANIFEST_TYPE
    manifest = json.loads(blob(files, described))
    (chart,) = manifest["layers"]
    assert (manifest["config"]["mediaType"], chart["mediaType"]) == (CONFIG_TYPE, CHART_TYPE)
    assert blob(files, chart) == package.read_bytes()
    about = json.loads(blob(files, manifest["config"]))
    version = package.stem.removeprefix("iscp-")
    assert (about["name"], about["version"]) == ("iscp", version)
    assert described["annotations"] == {"org.opencontainers.image.ref.name": version.replace("+", "_")}
    assert manifest["annotations"]["org.opencontainers.image.created"] == "2030-01-02T00:00:00Z"
    assert len(files) == 5


def test_the_same_package_gives_the_same_bytes(layout: Path, package: Path, tmp_path: Path) -> None:
    write_layout(package, tmp_path / "again.tar", EPOCH_S)
    assert (tmp_path / "again.tar").read_bytes() == layout.read_bytes()


class _Registry(BaseHTTPRequestHandler):
    """A registry of OCI artifacts (distribution-spec, "Pulling") that has one layout."""

    def __init__(self, files: Files, *given: Any) -> None:
        self.files = files
        super().__init__(*given)

    def do_GET(self) -> None:
        kind, _, name = self.path.removeprefix("/v2/charts/iscp/").partition("/")
        (described,) = json.loads(self.files["index.json"])["manifests"]
        tag = described["annotations"]["org.opencontainers.image.ref.name"]
        wanted = described["digest"] if (kind, name) == ("manifests", tag) else name
        content = self.files.get(f"blobs/{wanted.replace(':', '/')}", b"")
        self.send_response(200 if content or self.path == "/v2/" else 404)
        self.send_header("content-type", MANIFEST_TYPE if kind == "manifests" else "application/octet-stream")
        self.send_header("docker-content-digest", wanted)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (as the base class names it)
        pass


@contextmanager
def registry_of(files: Files) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Registry, files)) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_helm_takes_it_from_a_registry(layout: Path, package: Path, tmp_path: Path) -> None:
    version = package.stem.removeprefix("iscp-")
    with registry_of(files_of(layout)) as address:
        chart = f"oci://{address}/charts/iscp"
        options = ["--version", version, "--plain-http", "--destination", str(tmp_path)]
        subprocess.run([tool("helm"), "pull", chart, *options], check=True, capture_output=True, timeout=60)
    assert (tmp_path / package.name).read_bytes() == package.read_bytes()
