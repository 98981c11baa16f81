"""The place of a table, by its URI: a local directory, or a place on S3; and the one spelling of it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from iscp.adapters.delta.storage.dataset_names import DATASET_DIRECTORIES, VERSIONS
from iscp.core.access.account_roots import is_bucket, is_plain_uri
from iscp.core.values.argument_checks import require_unicode
from iscp.core.values.errors import InvalidRequest

S3 = "s3://"
NAME_BYTES_MAX = 255
"""Bytes of one name in a local path, as Linux has it; a longer one is refused."""

_S3_URI = re.compile(r"s3a?://(?P<bucket>[^/]*)/*(?P<key>.*)", re.DOTALL)
# Hadoop, delta-rs and obstore read all else in ways of their own: as a pattern, a fragment, or half of an escape.
_KEY_PART = re.compile(r"(?!\.\.?$)[A-Za-z0-9._=@~-]+")
_READ_IN_TWO_WAYS = "%\\"


def commit_name(version: int) -> str:
    """Return the name that Delta gives to the file of a commit, in the directory of the log."""
    return f"{version:020d}.json"


def checkpoint_name(version: int) -> str:
    """Return the name that Delta gives to a checkpoint that is a single file."""
    return f"{version:020d}.checkpoint.parquet"


def on_s3(uri: str) -> bool:
    """Return whether the URI names a place on S3; `s3a`, as Hadoop has it, is the same."""
    return uri.startswith((S3, "s3a://"))


def s3_place(uri: str) -> str:
    """Return the one spelling of a place on S3, `s3://BUCKET/KEY`. Raises InvalidRequest for what not all would read
    alike.
    """
    found = _S3_URI.fullmatch(uri)
    if found is None or not is_bucket(found["bucket"]):
        raise InvalidRequest(f"{uri} names no bucket", about="table", remedy="Write it as s3://BUCKET/KEY")
    parts = [part for part in found["key"].split("/") if part]
    if not parts:
        raise InvalidRequest(f"{uri} is a whole bucket", about="table", remedy="Write it as s3://BUCKET/KEY")
    for part in parts:
        if not _KEY_PART.fullmatch(part):
            raise InvalidRequest(
                f"{part!r} is not a name that Spark and delta-rs read alike",
                about="table",
                remedy="Use letters, digits and . _ - = @ ~ in keys on S3",
            )
    return f"{S3}{found['bucket']}/{'/'.join(parts)}"


def local_path(uri: str) -> Path | None:
    """Return the directory of a local table; None for one on S3. Raises InvalidRequest for a URI of another store."""
    if on_s3(uri):
        return None
    path = uri.removeprefix("file://") if uri.startswith("file://") else uri.removeprefix("file:")
    if "://" in path:
        scheme = path.split("://", 1)[0]
        raise InvalidRequest(
            f"tables on {scheme} are not supported yet", about="table", remedy="Use a path, a file: URI or s3://"
        )
    if odd := next((sign for sign in _READ_IN_TWO_WAYS if sign in path), ""):
        raise InvalidRequest(
            f"{uri} has a {odd}, which delta-rs reads as another path than Spark",
            about="table",
            remedy="Use a path without it; blanks and other signs are written as they are",
        )
    require_unicode(path, "table")
    if "\0" in path:
        raise InvalidRequest(f"{path!r} has a NUL, which no path has", about="table", remedy="Check the path")
    return Path("/" + os.path.abspath(path).lstrip("/"))  # POSIX lets two slashes at the beginning be


def first_link(path: Path) -> str:
    """The first part of an absolute path that is a symbolic link, the path itself being its last; empty: none is."""
    return next((str(each) for each in (*reversed(path.parents), path) if os.path.islink(each)), "")


def refuse_no_path(path: Path) -> None:
    """Raises InvalidRequest for what no file system could hold."""
    if any(len(os.fsencode(part)) > NAME_BYTES_MAX for part in path.parts):
        raise InvalidRequest(
            f"has a name of more than {NAME_BYTES_MAX} bytes", field="table", remedy="Give a path with shorter names"
        )


def place(uri: str) -> str:
    """Return the one spelling of a table's place: an absolute path, or `s3://BUCKET/KEY`. Raises InvalidRequest."""
    return s3_place(uri) if on_s3(uri) else str(local_path(uri))


def followed_places(uri: str) -> tuple[str, ...]:
    """Return the places of a table's files with links followed: its directory, and its log, which may be a link itself,
    as may the directories of an index.

    A URI of another store, for a custom consumer, stays as it is. Raises InvalidRequest.
    """
    if is_plain_uri(uri):
        return (uri,)
    path = local_path(uri)
    if path is None:
        return (s3_place(uri),)
    inside = ("_delta_log", *DATASET_DIRECTORIES) if os.path.lexists(path / VERSIONS) else ("_delta_log",)
    return os.path.realpath(path), *(os.path.realpath(path / name) for name in inside)


def followed_root(root: str) -> str:
    """Return a root of an account in the spelling that `followed_places` gives to what lies below it."""
    if on_s3(root):
        return S3 + root.partition("://")[2].rstrip("/")
    return root.rstrip("/") if is_plain_uri(root.rstrip("/")) else os.path.realpath(str(local_path(root)))
