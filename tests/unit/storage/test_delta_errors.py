"""What deltalake and a file system raise is translated into errors of iscp: retried, or for a person to repair."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError

from iscp.model.values.errors import Conflict, ErrorCode, IscpError, LeaseLost, StorageError, TableNotFound
from iscp.storage.delta_errors import delta_faults, storage_faults


def translated(faults: Callable[[str], AbstractContextManager[None]], error: Exception) -> IscpError:
    with pytest.raises(IscpError) as raised, faults("do it"):
        raise error
    if raised.value is not error:
        assert raised.value.__cause__ is error
        assert "do it" in str(raised.value)
    return raised.value


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, ErrorCode.NO_SPACE),
        (errno.EDQUOT, ErrorCode.NO_SPACE),
        (errno.EACCES, ErrorCode.STORAGE),
        (errno.EIO, ErrorCode.STORAGE),
        (errno.ESTALE, ErrorCode.STORAGE),
    ],
)
def test_faults_of_the_file_system_pass_and_say_what_to_do(number: int, code: ErrorCode) -> None:
    error = translated(storage_faults, OSError(number, "why"))
    assert (type(error), error.code) == (StorageError, code)
    assert error.code.temporary
    assert error.remedy


def test_a_missing_file_is_the_callers_to_judge() -> None:
    with pytest.raises(FileNotFoundError), storage_faults("do it"):
        raise FileNotFoundError(errno.ENOENT, "no such file")


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (CommitFailedError("version 4 already exists"), Conflict, ErrorCode.CONFLICT),
        (CommitFailedError("No space left on device (os error 28)"), StorageError, ErrorCode.NO_SPACE),
        (TableNotFoundError("no table"), TableNotFound, ErrorCode.TABLE_NOT_FOUND),
        (DeltaError("Generic error: No space left on device"), StorageError, ErrorCode.NO_SPACE),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), StorageError, ErrorCode.NO_SPACE),
        (DeltaError("broken"), StorageError, ErrorCode.STORAGE),
        (DeltaProtocolError("too new"), StorageError, ErrorCode.STORAGE),
        (OSError(errno.EACCES, "denied"), StorageError, ErrorCode.STORAGE),
    ],
)
def test_what_deltalake_raises(error: Exception, kind: type[IscpError], code: ErrorCode) -> None:
    found = translated(delta_faults, error)
    assert (type(found), found.code) == (kind, code)


def test_errors_of_iscp_pass_unchanged() -> None:
    lost = LeaseLost("gone")
    assert translated(delta_faults, lost) is lost


def test_what_nobody_named_passes_unchanged() -> None:
    for faults in (storage_faults, delta_faults):
        with pytest.raises(ZeroDivisionError), faults("do it"):
            raise ZeroDivisionError


def test_a_long_text_is_cut() -> None:
    assert len(str(translated(delta_faults, DeltaError("x" * 100_000)))) < 3_000
