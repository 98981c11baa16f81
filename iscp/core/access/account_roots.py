"""Directories and URIs below which the tables of an account may lie, as the configuration says.

Places are compared as they are spelled once links are followed; `iscp.runtime.access.place_guard` spells them so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from iscp.core.job.job_row import JobRow
from iscp.core.job.several_tables import tables_of
from iscp.core.sql.sql_names import DEAD_LETTER_SUFFIX, VIEW_STATE_SUFFIX

SOURCE_FIELD = "table"
TARGET_FIELD = "spec.iteration.consumer.target"
TABLES_FIELD = "spec.iteration.consumer.options.tables"

ROOTS_MAX = 100
"""Roots of one account; more are refused at the node's start."""

_PATH = re.compile(r"/(?!/)[^\\%\0]*")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_S3_URI = re.compile(rf"s3a?://({_BUCKET.pattern}(/[A-Za-z0-9._=@~-]+)*)?")
# Other stores are those of consumers of others, whose targets are compared as they are written.
_URI = re.compile(r"(?!s3|file:)[a-z][a-z0-9+.-]*://[A-Za-z0-9._:@-]+(/[A-Za-z0-9._:=@~-]+)*")


def is_bucket(name: str) -> bool:
    """Return whether `name` may be the name of a bucket on S3."""
    return bool(_BUCKET.fullmatch(name))


def is_root(root: str) -> bool:
    """Return whether a root is written so that everything reads it alike: as an absolute path, or as a URI without
    escapes.
    """
    path = root.removeprefix("file://") if root.startswith("file:///") else root
    if path != "/" and not path.endswith("://"):
        path = path.rstrip("/")
    if not _has_plain_parts(path):
        return False
    return "//" not in path.split("://", 1)[-1] and any(form.fullmatch(path) for form in (_PATH, _S3_URI, _URI))


def is_plain_uri(place: str) -> bool:
    """Return whether a target in another kind of store than Delta's is written so that everything reads it alike."""
    return bool(_URI.fullmatch(place)) and _has_plain_parts(place)


def _has_plain_parts(path: str) -> bool:
    return not any(part in (".", "..") for part in path.split("/"))


def lies_below(place: str, root: str) -> bool:
    """Return whether a place lies strictly below a root, both in their one spelling.

    `/` is above all local paths, and `s3://` above all buckets.
    """
    return place.startswith(root if root.endswith("/") else f"{root}/") and place != root


@dataclass(frozen=True, slots=True)
class AccountRoots:
    """The roots of the accounts that have any; `cluster_account` is restricted to roots only where it has some
    itself.
    """

    by_account: Mapping[str, Collection[str]] = field(default_factory=dict)
    cluster_account: str = ""

    def of(self, account: str) -> tuple[str, ...] | None:
        """Return the roots of an account, or None if it may go wherever the node may.

        As soon as one account has roots, an account without any has no place at all.
        """
        if account in self.by_account:
            return tuple(self.by_account[account])
        return None if not self.by_account or account == self.cluster_account else ()


def places_around(target: str) -> tuple[str, ...]:
    """Return a target and the tables that are stored beside it."""
    return target, target + DEAD_LETTER_SUFFIX, target + VIEW_STATE_SUFFIX


def places_of(row: JobRow) -> Iterator[tuple[str, str]]:
    """Yield the places that a job reads and writes, each with the field that names it."""
    yield SOURCE_FIELD, row.table_uri
    for name, uri in tables_of(row).items():
        yield f"{TABLES_FIELD}.{name}", uri
    if target := row.spec.consumer.target:
        for place in places_around(target):
            yield TARGET_FIELD, place
