"""Files and directories that a process makes or reads for itself: private directories, files that are replaced as a
whole, temporary directories, files of TOML, and the limit of open files.
"""

from __future__ import annotations

import fcntl
import os
import re
import resource
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from iscp.model.values.errors import ConfigurationError

# --- files of one user ------------------------------------------------------------------------------------------------
# Readers find a file as it was or as it is to be, and never in between. A directory is for its user alone.


def private_directory(path: Path) -> Path:
    """Make a directory, with those above it, that only its user may enter; one of this user's that exists becomes so.

    Raises OSError.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    if found.st_uid == os.geteuid() and found.st_mode & 0o077:
        path.chmod(0o700)
    return path


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file, whole or not at all, whoever else writes it; `mode`: who may read it. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.stem}-", delete=False) as scratch:
        scratch.write(content)
        os.fchmod(scratch.fileno(), mode)
    os.replace(scratch.name, path)


# --- small files that settings name -----------------------------------------------------------------------------------


def read_named_file(file: str, setting: str, bytes_max: int) -> bytes:
    """Return what a file holds, of a larger one `bytes_max` + 1 bytes. Raises ConfigurationError on the setting."""
    try:
        with Path(file).open("rb") as opened:
            return opened.read(bytes_max + 1)
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be read ({error.strerror})", about=setting, remedy="Name a file that exists"
        ) from error


# --- temporary directories --------------------------------------------------------------------------------------------
# A directory that a killed process leaves stays only until another process of iscp starts.

SUFFIX = ".iscp-scratch"
"""The end of the names of such directories: what a user has called by the same beginning is never removed."""

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextmanager
def scratch_directory(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a directory in `parent`, by default the system's for temporary files; it is removed at the end.

    Removes those of the same prefix, suffix and user whose processes are gone. Raises OSError.
    """
    parent = parent or Path(tempfile.gettempdir())
    for left in parent.glob(f"{prefix}*{SUFFIX}"):
        _remove_left(left)
    made, hold = _make(prefix, parent)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(hold)


def _make(prefix: str, parent: Path) -> tuple[Path, int]:
    """Return a new directory and the lock that shows that it is in use; the kernel frees it however the process
    ends.
    """
    while True:
        made = Path(tempfile.mkdtemp(SUFFIX, prefix, parent))
        try:
            hold = os.open(made, _FLAGS)
        except FileNotFoundError:
            continue
        fcntl.flock(hold, fcntl.LOCK_EX)
        # One that starts at the same time may have taken it for a left one before it was locked.
        if os.fstat(hold).st_nlink:
            return made, hold
        os.close(hold)


def _remove_left(left: Path) -> None:
    try:
        hold = os.open(left, _FLAGS)
    except OSError:  # another user's, no directory, or gone
        return
    try:
        if os.fstat(hold).st_uid == os.geteuid():
            fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    except BlockingIOError:  # in use
        pass
    finally:
        os.close(hold)


# --- files of TOML ----------------------------------------------------------------------------------------------------
# People write these files; they are read in bounded time and memory.

FILE_CHARS_MAX = 100_000
"""Characters of a file of settings or of contexts; a longer one is refused. All settings have a tenth of it."""

KEY_PARTS_MAX = 100
"""Parts of a dotted key in such a file; a longer key is refused, as tomllib's time grows with their square."""

# Where a key can begin. A text in which this stands by chance would be a strange one, and is refused as well.
_LONG_KEY = re.compile(
    r"""(?:^|[\[{,]) [ \t]* (?: (?: [\w-]++ | "(?:[^"\\\n]|\\.)*+" | '[^'\n]*+' ) [ \t]*+ \. [ \t]*+ )"""
    f"{{{KEY_PARTS_MAX}}}",
    re.MULTILINE | re.VERBOSE,
)


def read_toml(file: Path) -> dict[str, Any]:
    """Raises OSError, and ValueError whose text goes after the file's name."""
    with file.open(encoding="utf-8") as stream:
        try:
            text = stream.read(FILE_CHARS_MAX + 1)
        except UnicodeDecodeError as error:
            raise ValueError(f"is not TOML: {error}") from error
    if len(text) > FILE_CHARS_MAX:
        raise ValueError(f"has more than {FILE_CHARS_MAX} characters")
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"has a key of more than {KEY_PARTS_MAX} parts in line {line}")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of too many digits; nested too deep
        raise ValueError(f"is not TOML: {error}") from error


# --- open files -------------------------------------------------------------------------------------------------------
# The limit is that of files which this process may have open: whoever leads has a connection to every node of the
# cluster.

OPEN_FILES_BESIDE_NODES = 512
"""Open files left for all but the nodes' streams: users' connections, tables, etcd, Spark's gateway, logs."""


def files_needed(nodes: int) -> int:
    """Return how many files an owner of so many nodes may have open."""
    return nodes + OPEN_FILES_BESIDE_NODES


def raise_open_files_limit() -> int:
    """Raise the soft limit to the hard one, if the system lets it; the limit that holds from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems say more than they allow
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return open_files_limit()


def open_files_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def refuse_too_few_files(limit: int, nodes: int) -> None:
    """Raise ConfigurationError where this process could not lead a cluster of so many nodes."""
    if limit < (needed := files_needed(nodes)):
        raise ConfigurationError(
            f"this process may have {limit} files open, and an owner of {nodes} nodes needs {needed}",
            about="ulimit -n",
            remedy=f"Raise the hard limit to {needed} or more: `ulimit -Hn` in a shell, `LimitNOFILE=` of systemd, "
            "`ulimits` of a container",
        )
