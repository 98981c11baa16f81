"""Whatever Lance raises for a damaged dataset is an error of that index, and ends no thread."""

from __future__ import annotations

import os
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.commit import CommitConflictError

from iscp.index.lance.lance_access import NoIndexError, lance_faults, open_dataset
from iscp.model.values.errors import Conflict, StorageError

PanicException = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})


@pytest.mark.parametrize(
    ("raised", "becomes", "why"),
    [
        (
            PanicException("index out of bounds\nat x.rs"),
            StorageError,
            "cannot read it: Lance gave up: index out of bounds",
        ),
        (CommitConflictError("overtaken"), Conflict, "another writer was first"),
        (OSError("Not found: data/x.lance"), StorageError, "cannot read it: Not found: data/x.lance"),
        (pa.ArrowInvalid("odd"), StorageError, "cannot read it: odd"),
        (pa.ArrowNotImplementedError("odd"), StorageError, "cannot read it: odd"),
        (OverflowError("too large"), StorageError, "too large"),
        (MemoryError("no room"), StorageError, "no room"),
    ],
)
def test_what_lance_raises_is_translated(raised: BaseException, becomes: type[Exception], why: str) -> None:
    with pytest.raises(becomes, match=why), lance_faults("read it"):
        raise raised


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), SystemExit(1), KeyError("x"), StorageError("ours")])
def test_what_is_not_lances_passes(raised: BaseException) -> None:
    with pytest.raises(type(raised)) as passed, lance_faults("read it"):
        raise raised
    assert passed.value is raised


def test_a_panic_has_the_name_that_is_known() -> None:
    """PyO3 gives no way to import its exception, so its module is sought in the library."""
    assert PanicException.__module__ == "pyo3_runtime"
    assert any(b"pyo3_runtime" in part.read_bytes() for part in Path(lance.__file__).parent.glob("lance*.so"))


def test_a_missing_dataset_or_version_is_no_index_and_a_pipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoIndexError, match="cannot open"):
        open_dataset(str(tmp_path / "nothing"))
    lance.write_dataset(pa.table({"a": [1]}), tmp_path / "there")
    with pytest.raises(NoIndexError, match="cannot open"):
        open_dataset(str(tmp_path / "there"), 9)
    assert open_dataset(str(tmp_path / "there"), 1).version == 1
    os.mkfifo(tmp_path / "there" / "data" / "x")
    with pytest.raises(StorageError, match="is a pipe"):
        open_dataset(str(tmp_path / "there"))
