"""The Helm chart as an OCI image layout: what a registry of OCI artifacts holds of it, in one file.

The media types are those of Helm (HIP 6), and the layout is that of the specification of OCI images 1.1. Whoever has
the file copies it into any registry, with the digests that the release states.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

CONFIG_TYPE = "application/vnd.cncf.helm.config.v1+json"
CHART_TYPE = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"

_ANNOTATION = "org.opencontainers.image"


def write_layout(package: Path, out: Path, epoch_s: int) -> None:
    """Write the layout of a packaged chart into a tar archive, all of it as of one time (Unix seconds)."""
    chart = package.read_bytes()
    about = _metadata(chart)
    config = _json(about)
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _described(CONFIG_TYPE, config),
            "layers": [_described(CHART_TYPE, chart)],
            "annotations": _annotations(about, epoch_s),
        }
    )
    # A tag has no plus sign, for which Helm writes an underscore.
    tag = {f"{_ANNOTATION}.ref.name": about["version"].replace("+", "_")}
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE}
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json(index | {"manifests": [_described(MANIFEST_TYPE, manifest) | {"annotations": tag}]}),
        **{f"blobs/sha256/{_digest(each)}": each for each in (chart, config, manifest)},
    }
    with tarfile.open(out, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), epoch_s, 0o644
            archive.addfile(entry, io.BytesIO(content))


def _metadata(package: bytes) -> dict[str, Any]:
    """Return what the chart says of itself."""
    with tarfile.open(fileobj=io.BytesIO(package)) as chart:
        (name,) = (each for each in chart.getnames() if each.count("/") == 1 and each.endswith("/Chart.yaml"))
        described = chart.extractfile(name)
        assert described is not None
        found: dict[str, Any] = yaml.safe_load(described)
    return found


def _annotations(about: dict[str, Any], epoch_s: int) -> dict[str, str]:
    made = {"title": about["name"], "version": about["version"], "description": about.get("description", "")}
    created = datetime.fromtimestamp(epoch_s, UTC).isoformat().replace("+00:00", "Z")
    return {f"{_ANNOTATION}.{name}": value for name, value in {**made, "created": created}.items() if value}


def _described(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{_digest(content)}", "size": len(content)}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
