"""The manifest of a backup of the job log, the file that is written last: without it there is no backup.

A manifest names the one file of rows by its size and SHA-256, and carries a SHA-256 of itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from iscp.core.values.errors import ConfigurationError, InvalidRequest
from iscp.core.values.untrusted_values import error_text, exact_float, exact_int, exact_name

MANIFEST = "manifest.json"
KIND = "iscp_log"
FORMAT = 1
"""A manifest of a later one is refused."""

_FILE = re.compile(r"[a-z0-9_-]+\.parquet")


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """One version of the job log. `schema_json` and `properties` are the table's own, `log_format` is among these.

    `jobs` counts registrations that are not dropped, `rows` the rows of `file`, which has `size` bytes; `taken_at_s`
    is Unix seconds; `program` the version of iscp.
    """

    cluster: str
    table_id: str
    log_format: int
    version: int
    term: int
    jobs: int
    rows: int
    file: str
    size: int
    sha256: str
    schema_json: str
    properties: Mapping[str, str]
    taken_at_s: float
    program: str

    def to_bytes(self) -> bytes:
        about = asdict(self)
        whole = {"format": FORMAT, "kind": KIND, "backup": about, "sha256": _digest(about)}
        return json.dumps(whole, indent=2).encode()


def digest_of(content: bytes) -> str:
    return sha256(content).hexdigest()


def _digest(about: Mapping[str, Any]) -> str:
    return digest_of(json.dumps(about, sort_keys=True).encode())


def parse_manifest(content: bytes, path: str) -> BackupManifest:
    """Raises ConfigurationError where a newer iscp has written it, InvalidRequest where it is damaged or of others."""
    try:
        whole = json.loads(content)
        if not isinstance(whole, dict) or whole.get("kind") != KIND:
            raise ValueError("it is no manifest of a backup of the job log")
        written = exact_int(whole["format"], "format")
        if written > FORMAT:
            raise ConfigurationError(
                f"{path} is of format {written}, and this iscp knows {FORMAT}",
                about="SRC",
                remedy="Restore it with the iscp that made it, or a newer one",
            )
        about = whole["backup"]
        if _digest(about) != whole["sha256"]:
            raise ValueError("its SHA-256 is another")
        return _checked(BackupManifest(**about))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidRequest(
            f"{path} is damaged: {error_text(error)}", about="SRC", remedy="Restore another backup"
        ) from error


def _checked(manifest: BackupManifest) -> BackupManifest:
    """Return the manifest unchanged. Raises ValueError for one that `iscp-admin backup create` does not write."""
    for name in ("log_format", "version", "term", "jobs", "rows", "size"):
        exact_int(getattr(manifest, name), name)
    for name in ("cluster", "table_id", "sha256", "program"):
        exact_name(getattr(manifest, name), name)
    exact_float(manifest.taken_at_s, "taken_at_s")
    for text in (manifest.schema_json, *manifest.properties, *manifest.properties.values()):
        if not isinstance(text, str):
            raise ValueError("its columns or properties are no texts")
    if not _FILE.fullmatch(exact_name(manifest.file, "file")):
        raise ValueError("it names a file of no backup")
    return manifest
