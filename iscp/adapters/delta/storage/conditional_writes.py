"""That a store on S3 refuses a file that is there already: without it, of two commits of one version both would win.

A node races its writers for that (`selftest`); an application that appends to a changefeed finds out by three requests.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache

from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.bucket_keys import endpoint_of
from iscp.adapters.delta.storage.locations import S3, on_s3
from iscp.core.values.errors import ErrorCode, PermanentError, StorageError

REMEDY = "Use a store that obeys If-None-Match: * on PUT, as AWS's does, and nothing between that drops it"

SCRATCH_PREFIX = ".iscp-conditional-write-"
"""Neither Delta nor its vacuum reads names that begin like this."""

STORES_CACHED_MAX = 256
"""Buckets of which a process remembers that they refuse a second write of a name; of others it is tried again."""


@dataclass(frozen=True, slots=True)
class _Store:
    """A bucket of an endpoint, whichever table it is tried with."""

    bucket: str
    endpoint: str
    uri: str = field(compare=False)


def require_conditional_writes(uri: str) -> None:
    """Try it in the bucket of a table, below the table, once in a process; on local paths link(2) keeps to it.

    Raises PermanentError where the store does not, StorageError where it could not be tried.
    """
    if on_s3(uri):
        bucket = uri.removeprefix(S3).partition("/")[0]
        _require(_Store(bucket, endpoint_of(uri), uri))


@lru_cache(maxsize=STORES_CACHED_MAX)
def _require(store: _Store) -> None:
    scratch = f"{store.uri}/{SCRATCH_PREFIX}{uuid.uuid4().hex}"
    try:
        files.create(f"{scratch}/file", b"first")
        overwritten = files.create(f"{scratch}/file", b"second")
    except OSError as error:
        reason = f"{store.uri} cannot be written to: {error.strerror or error}"
        raise StorageError(reason, about="uri", remedy=f"Check bucket and credentials. {REMEDY}") from error
    finally:
        with suppress(OSError):
            files.remove_tree(scratch)
    if overwritten:
        reason = f"the store of {store.uri} overwrites what is there"
        raise PermanentError(reason, about="uri", remedy=REMEDY, code=ErrorCode.SELF_TEST)
