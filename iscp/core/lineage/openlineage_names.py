"""Names of tables as the naming specification of OpenLineage has them: a namespace, and a name within it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from iscp.core.values.untrusted_values import NAME_CHARS_MAX, escaped

_S3 = ("s3://", "s3a://")


class DatasetName(NamedTuple):
    """A table at a path of this machine is in `file`; one on S3 in its bucket, by its key."""

    namespace: str
    name: str


def dataset_name(uri: str) -> DatasetName | None:
    """Return the name of the table at `uri`; None if it is at no place that has one, as a custom consumer's target.

    Signs that have no form in UTF-8, or steer a terminal, are escaped.
    """
    if len(uri) > NAME_CHARS_MAX:
        return None
    if scheme := next((each for each in _S3 if uri.startswith(each)), ""):
        bucket, _, key = uri.removeprefix(scheme).partition("/")
        key = key.strip("/")
        return DatasetName(f"s3://{escaped(bucket)}", escaped(key)) if bucket and key else None
    path = uri
    if uri.startswith("file:"):
        try:
            path = unquote(urlsplit(uri).path)
        except ValueError:
            return None
    path = path.rstrip("/") if path.startswith("/") else ""
    return DatasetName("file", escaped(path)) if path else None
