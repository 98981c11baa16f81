"""The names of what lies in a Lance dataset, above all of its manifests, each of which is one of its versions.

Lance (https://lance.org/format/table/) counts down in these from the largest number of 64 bits, so that a listing
begins with the newest.
"""

from __future__ import annotations

import re

VERSIONS = "_versions"
"""The directory of a dataset in which its manifests lie."""

DELETIONS = "_deletions"
"""The directory of a dataset in which the numbers of deleted rows lie."""

TRANSACTIONS = "_transactions"
"""The directory of a dataset in which each commit says what it has changed; a name begins with the version before."""

INDICES = "_indices"
"""The directory of a dataset in which each segment of an index has a directory of its own."""

DATA = "data"
"""The directory of a dataset in which its rows lie."""

DATASET_DIRECTORIES = (VERSIONS, TRANSACTIONS, INDICES, DELETIONS, "_iscp", DATA)
"""The directories of a dataset that is an index, each of which might be a link."""

BUILDS = "_iscp-build"
"""The directory below a target in which builds have what they have staged, until they are published."""

BUILD_BEGUN = "begun.json"
"""The file in the directory of each build that is there from its begin to its end."""

VERSION_HINT = "latest_version_hint.json"
"""The file beside the manifests that names one of the newest."""

_MANIFEST = re.compile(r"(?P<left>\d{20})\.manifest")
_ANY_MANIFEST = re.compile(r"d?\d{1,20}\.manifest")
_VERSION_MAX = 2**64 - 1


def manifest_name(version: int) -> str:
    """Return the name of the file that is this version of a dataset."""
    return f"{_VERSION_MAX - version:020d}.manifest"


def manifest_version(name: str) -> int | None:
    """Return the version that a file in the directory of manifests is; None: it is none."""
    found = _MANIFEST.fullmatch(name)
    version = _VERSION_MAX - int(found["left"]) if found else -1
    return version if version >= 0 else None


def is_manifest(name: str) -> bool:
    """Return whether a file is a manifest by any of Lance's ways to name one: counted up as before, or detached."""
    return _ANY_MANIFEST.fullmatch(name) is not None
