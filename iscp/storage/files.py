"""Reads and writes what iscp itself needs of a store: small files, their identity, and what lies in a directory; and
checks that a store refuses a second write of a name, and that there is a place for a table.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import shutil
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError, StorageError
from iscp.model.values.untrusted_values import unwritten_sign
from iscp.storage.delta_errors import storage_faults
from iscp.storage.locations import S3, on_s3, place
from iscp.storage.regular_files import open_regular, require_regular, require_size
from iscp.storage.s3_settings import BucketKey, endpoint_of, key_of
from iscp.system.late_imports import obstore, obstore_errors

if TYPE_CHECKING:
    from obstore.store import S3Store


# --- files of a store -------------------------------------------------------------------------------------------------
# A file is named by one string: an absolute path, or `s3://BUCKET/KEY`. How either is reached is decided here; nothing
# of Delta is known. Whatever goes wrong is an OSError. The environment (`AWS_*`, and for buckets with a key of their
# own `iscp.storage.s3_settings`) says where S3 is and with which identity, for deltalake too: so both always use the
# same store. `iscp.storage.s3_settings` puts there what the configuration says.
#
# Local files are read and written by the operating system's calls, not by obstore's `LocalStore`, which would be one
# way for both: its `put` syncs neither the file nor its directory, so that what was acknowledged could be lost with the
# power (ADR 2).

FILE_BYTES_MAX = 128 * 1024**2
"""Bytes of a file that is read whole into memory, a commit above all; a larger one is refused by its name."""

CONNECT_TIMEOUT_S = 5
"""How long an object store may take to accept a connection; then the attempt has failed."""

REQUEST_TIMEOUT_S = 20
"""How long one attempt of a request to an object store may take; then it has failed."""

RETRIES_MAX = 2
"""Further attempts of a request to an object store; then it fails with a StorageError."""

RETRY_TIMEOUT_S = 10
"""No further attempt is begun so long after the first one began."""

_DUMP = "Debug source"
"""Obstore's message ends and the dump of its state begins at this text."""
_REASON_LENGTH_MAX = 500
_READ_BYTES = 8 * 1024**2


def stamp(path: str) -> tuple[int, ...]:
    """Return what distinguishes this file from any other of its name: identity (of the inode, or the ETag), time in ns,
    size.

    The stamp is empty where there is no such file.
    """
    try:
        if path.startswith(S3):
            client, key = _client_of(path)
            with _s3_faults():
                return _stamp_of(obstore.head(client, key))
        found = os.lstat(path)  # where a link leads to is nobody's business here, and may not answer
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _stamp_of(meta: Any) -> tuple[int, ...]:
    return _number(meta["e_tag"] or ""), int(meta["last_modified"].timestamp() * 1e9), meta["size"]


def exists(path: str) -> bool:
    return bool(stamp(path)) if path.startswith(S3) else os.access(path, os.F_OK, follow_symlinks=False)


def read(path: str, bytes_max: int = FILE_BYTES_MAX) -> tuple[bytes, float]:
    """Return all of a file, and when it was written (Unix seconds).

    Raises FileNotFoundError, and RefusedFile for one that is larger, or no regular file, none of which is read.
    """
    if path.startswith(S3):
        client, key = _client_of(path)
        with _s3_faults():
            found = obstore.get(client, key)
            require_size(path, found.meta["size"], bytes_max)
            return bytes(found.bytes()), found.meta["last_modified"].timestamp()
    with open_regular(path, bytes_max) as (handle, about):
        return _read_at(handle, 0, about.st_size), about.st_mtime


def read_head(path: str, bytes_max: int) -> bytes:
    """Return the first bytes of a file, all of it where it has no more. Raises FileNotFoundError, RefusedFile."""
    return read_part(path, 0, bytes_max)


def read_part(path: str, begin: int, length: int) -> bytes:
    """Return `length` bytes of a file from a place on; fewer where it ends. Raises FileNotFoundError, RefusedFile."""
    if path.startswith(S3):
        client, key = _client_of(path)
        with _s3_faults():
            return bytes(obstore.get(client, key, options={"range": (begin, begin + length)}).bytes())
    with open_regular(path) as (handle, about):
        return _read_at(handle, begin, min(length, max(0, about.st_size - begin)))


def _read_at(handle: int, begin: int, length: int) -> bytes:
    """Read up to that length, also of a file that grows meanwhile."""
    parts = []
    while length and (part := os.pread(handle, min(length, _READ_BYTES), begin)):
        parts.append(part)
        begin, length = begin + len(part), length - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


_WRITER = "iscp-writer"
"""Metadata of an object: who has written it, as the log store of Spark's commits has it too."""


def create(path: str, content: bytes) -> bool:
    """Write a file if none of its name is there, in one atomic step; False: there is one of somebody else.

    On a local path it outlives a power loss then, but for its name: that takes a `sync` of the directory.
    """
    if path.startswith(S3):
        return _create_object(*_client_of(path), content)
    try:
        with write_beside(path, content) as hidden:
            os.link(hidden, path)  # one system call that fails where the name is taken, for all processes (ADR 2)
    except FileExistsError:
        return False
    return True


def _create_object(client: S3Store, key: str, content: bytes) -> bool:
    writer = uuid.uuid4().hex
    try:
        with _s3_faults():
            obstore.put(client, key, content, attributes={_WRITER: writer}, mode="create")
    except OSError as error:
        # A put whose answer was lost is repeated, and then finds the object that it has made.
        with suppress(OSError), _s3_faults():
            if obstore.get(client, key, options={"head": True}).attributes.get(_WRITER) == writer:
                return True
        if isinstance(error, FileExistsError):
            return False
        raise
    return True


def replace(path: str, content: bytes) -> None:
    """Write a file, whatever is there under its name; readers find the one or the other, whole."""
    if path.startswith(S3):
        client, key = _client_of(path)
        with _s3_faults():
            obstore.put(client, key, content)
        return
    with write_beside(path, content) as hidden:
        os.replace(hidden, path)


@contextmanager
def write_beside(path: str, content: bytes) -> Iterator[str]:
    """Write a file beside a local path, under a name that nobody reads, whose content outlives a power loss.

    The file is gone at the end, if it has not become the file at `path` by then.
    """
    hidden = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{uuid.uuid4().hex}.tmp"
    try:
        with open(hidden, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # before it has its name: a reader never sees a commit that is cut short
        yield hidden
    finally:
        with suppress(OSError):
            os.unlink(hidden)


def names(directory: str) -> list[str]:
    """Return the files in a directory, in no order; none where it is not there."""
    if directory.startswith(S3):
        client, key = _client_of(directory)
        with _s3_faults():
            listed = obstore.list_with_delimiter(client, key)
        return [meta["path"].rpartition("/")[2] for meta in listed["objects"]]
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def stamps(directory: str) -> dict[str, tuple[int, ...]]:
    """Return the files in a directory, as `names`, and the stamps that a listing shows, which a local one does not.

    Raises RefusedFile where one is neither a regular file nor a directory.
    """
    if directory.startswith(S3):
        client, key = _client_of(directory)
        with _s3_faults():
            listed = obstore.list_with_delimiter(client, key)
        return {meta["path"].rpartition("/")[2]: _stamp_of(meta) for meta in listed["objects"]}
    found: dict[str, tuple[int, ...]] = {}
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    require_regular(entry.path)
            found[entry.name] = ()
    return found


def first_stamps(directory: str, limit: int) -> dict[str, tuple[int, ...]]:
    """Return the paths and stamps of up to `limit` files below a directory on S3, by one request for each 1,000: those
    whose paths, which are relative to it, come first.
    """
    client, key = _client_of(directory)
    with _s3_faults():
        found = next(iter(obstore.list(client, f"{key}/", chunk_size=limit)), [])
    return {meta["path"].removeprefix(f"{key}/"): _stamp_of(meta) for meta in found}


def names_below(directory: str, limit: int) -> Iterator[str]:
    """Yield up to `limit` names below a directory, as paths relative to it, the nearest first where it is local."""
    if directory.startswith(S3):
        client, key = _client_of(directory)
        with _s3_faults():
            found = next(iter(obstore.list(client, f"{key}/", chunk_size=limit)), [])
        yield from (meta["path"].removeprefix(f"{key}/") for meta in found)
        return
    waiting = deque([""])
    while waiting and limit > 0:
        inside = waiting.popleft()
        with (
            suppress(FileNotFoundError, NotADirectoryError, PermissionError),
            os.scandir(f"{directory}/{inside}") as entries,
        ):
            for entry in islice(entries, limit):
                limit -= 1
                yield inside + entry.name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{inside}{entry.name}/")


def files_below(directory: str) -> Iterator[tuple[str, float]]:
    """Yield all files below a directory, in no order: their paths relative to it, and when each was written last (Unix
    seconds). Links are files here, and not followed.
    """
    if directory.startswith(S3):
        client, key = _client_of(directory)
        with _s3_faults():
            for page in obstore.list(client, f"{key}/"):
                for meta in page:
                    yield meta["path"].removeprefix(f"{key}/"), meta["last_modified"].timestamp()
        return
    for parent, folders, found in os.walk(directory):
        links = [name for name in folders if os.path.islink(f"{parent}/{name}")]
        for name in (*found, *links):
            with suppress(FileNotFoundError):
                yield os.path.relpath(f"{parent}/{name}", directory), os.lstat(f"{parent}/{name}").st_mtime


def folders_below(directory: str) -> list[str]:
    """Return all directories below a local one, as paths relative to it, the deepest first; none on S3."""
    found: list[str] = []
    if not directory.startswith(S3):
        for parent, _, _ in os.walk(directory, topdown=False):
            found += [] if parent == directory else [os.path.relpath(parent, directory)]
    return found


def bytes_below(directory: str) -> int:
    """Return how many bytes the files below a directory have together; those that go meanwhile do not count."""
    if directory.startswith(S3):
        client, key = _client_of(directory)
        with _s3_faults():
            return sum(meta["size"] for page in obstore.list(client, f"{key}/") for meta in page)
    size = 0
    for parent, _, found in os.walk(directory):
        for name in found:
            with suppress(OSError):
                size += os.lstat(f"{parent}/{name}").st_size
    return size


def rename(path: str, to: str) -> None:
    """Give a file another name, which must not be taken. Raises FileExistsError."""
    if path.startswith(S3):
        client, key = _client_of(path)
        with _s3_faults():
            obstore.rename(client, key, _client_of(to)[1], overwrite=False)
        return
    os.link(path, to)  # os.rename would replace a file of that name
    os.unlink(path)


def remove(path: str) -> None:
    """Remove a file; nothing happens where it is gone already."""
    if path.startswith(S3):
        client, key = _client_of(path)
        with _s3_faults(), suppress(FileNotFoundError):
            obstore.delete(client, key)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def remove_all(paths: Sequence[str]) -> None:
    """Remove files of one directory or bucket, as `remove` does each."""
    if paths and paths[0].startswith(S3):
        client = _client_of(paths[0])[0]
        with _s3_faults(), suppress(FileNotFoundError):
            obstore.delete(client, [_client_of(path)[1] for path in paths])
        return
    for path in paths:
        remove(path)


def remove_folder(path: str) -> None:
    """Remove a local directory that is empty; nothing happens to others, and on S3."""
    if not path.startswith(S3):
        with suppress(OSError):
            os.rmdir(path)


def remove_tree(directory: str) -> None:
    """Remove everything below a directory, in no order."""
    if directory.startswith(S3):
        client, key = _client_of(directory)
        with _s3_faults():
            for found in obstore.list(client, key):
                obstore.delete(client, [meta["path"] for meta in found])
    else:
        shutil.rmtree(directory)


def parent_is_there(path: str) -> bool:
    """Return whether the directory above a table exists; always true on S3, where a missing bucket fails by itself."""
    return path.startswith(S3) or Path(path).parent.is_dir()


def is_file(path: str) -> bool:
    """Return whether a file is where a directory belongs; false on S3, where neither excludes the other."""
    return not path.startswith(S3) and os.path.isfile(path)


def is_link(path: str) -> bool:
    """Return whether a symbolic link is there; false on S3, which has none."""
    return not path.startswith(S3) and os.path.islink(path)


def _client_of(path: str) -> tuple[S3Store, str]:
    bucket, _, key = path.removeprefix(S3).partition("/")
    return _client(bucket, endpoint_of(path), key_of(path)), key


@lru_cache(maxsize=256)
def _client(bucket: str, endpoint: str, own: BucketKey | None) -> S3Store:
    """Return the bucket's client, one for each as it caches connections; settings that are not given are read from
    `AWS_*`.
    """
    from obstore.store import S3Store

    given: Any = own.options if own else {}
    return S3Store(
        bucket,
        config=given,
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
            "timeout": f"{REQUEST_TIMEOUT_S}s",
        },
        retry_config={"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S)},
    )


@contextmanager
def _s3_faults() -> Iterator[None]:
    """Turn what obstore raises into OSError; that a file is not there it says by FileNotFoundError itself."""
    try:
        yield
    except (obstore_errors.AlreadyExistsError, obstore_errors.PreconditionError) as error:
        raise FileExistsError(errno.EEXIST, "is there already") from error
    except obstore_errors.BaseError as error:
        denied = isinstance(error, obstore_errors.PermissionDeniedError | obstore_errors.UnauthenticatedError)
        reason = " ".join(str(error).partition(_DUMP)[0].split())[:_REASON_LENGTH_MAX]
        raise OSError(errno.EACCES if denied else errno.EIO, reason) from error


def _number(e_tag: str) -> int:
    return int.from_bytes(hashlib.sha256(e_tag.encode()).digest()[:8])


# --- conditional writes -----------------------------------------------------------------------------------------------
# A store on S3 has to refuse a file that is there already: otherwise of two commits of one version both would win. A
# node races its writers for that (`selftest`); an application that appends to a changefeed finds out by three requests.

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
        create(f"{scratch}/file", b"first")
        overwritten = create(f"{scratch}/file", b"second")
    except OSError as error:
        reason = f"{store.uri} cannot be written to: {error.strerror or error}"
        raise StorageError(reason, about="uri", remedy=f"Check bucket and credentials. {REMEDY}") from error
    finally:
        with suppress(OSError):
            remove_tree(scratch)
    if overwritten:
        reason = f"the store of {store.uri} overwrites what is there"
        raise PermanentError(reason, about="uri", remedy=REMEDY, code=ErrorCode.SELF_TEST)


# --- the place of a table ---------------------------------------------------------------------------------------------
# Nobody creates the directories above a table, which may be a volume's.


def require_place(uri: str) -> None:
    """Raises StorageError where the directory in which the table is to lie is not there, and as `missing_parent`."""
    if missing_parent(uri):
        raise StorageError(f"the directory of the target {uri} is not there", remedy="Mount or create it")


def missing_parent(uri: str) -> str:
    """The directory that is to hold a table, where it is not there; empty: it is, or the store has none.

    Raises StorageError where that cannot be seen, InvalidRequest where no table can be written.
    """
    at = place(uri)
    if fault := unwritten_sign(at):
        raise InvalidRequest(fault[0], about="target", remedy=fault[1], code=ErrorCode.TARGET_UNUSABLE)
    with storage_faults(f"look for the directory of {uri}"):
        return "" if parent_is_there(at) else posixpath.dirname(at)
