"""Find the rows of a data file that a commit has changed by a deletion vector alone (Delta protocol, "Add CDC File").

A file that a commit takes away and puts back with another vector lost the rows that only the later one marks, and got
back those that only the former one marks.
"""

from __future__ import annotations

import numpy as np
from pyroaring import BitMap64

from iscp.adapters.delta.log.actions import is_count
from iscp.adapters.delta.log.commits import ChangeFile, Descriptor
from iscp.adapters.delta.log.deletion_vectors import Places, load_vector
from iscp.adapters.delta.storage.bounded_parquet import Allowance
from iscp.core.values.errors import PermanentError, StorageError

_READ_HERE = ("i", "u")
"""The ways of storing a vector by which it is inline, or below its table."""


class UnreadVectorError(Exception):
    """A vector is not read here, or is damaged: Spark reads it, or says what is wrong with it."""


def find_changed_places(uri: str, file: ChangeFile, rows: int, allowance: Allowance) -> Places | None:
    """Return the numbers of the changed rows of a file with `rows` rows, or None if all are.

    Raises UnreadVectorError, and TooLargeError where vectors and numbers take more memory than allowed.
    """
    if file.within is None and file.without is None:
        return None
    gone = BitMap64() if file.without is None else _read(uri, file.without, rows, allowance)
    if file.within is not None:
        chosen = _read(uri, file.within, rows, allowance) - gone
        allowance.take(len(chosen) * np.dtype(np.int64).itemsize)
        return np.array(chosen.to_array(), np.int64)
    allowance.take(rows * np.dtype(np.int64).itemsize)
    left = np.ones(rows, np.bool_)
    left[np.array(gone.to_array(), np.int64)] = False
    return np.flatnonzero(left)


def _read(uri: str, vector: Descriptor, rows: int, allowance: Allowance) -> BitMap64:
    size = vector.get("sizeInBytes")
    if vector.get("storageType") not in _READ_HERE or not is_count(size):
        raise UnreadVectorError
    allowance.take(size)
    try:
        found = load_vector(uri, vector)
    except (StorageError, PermanentError) as error:
        raise UnreadVectorError from error
    if len(found) and found.max() >= rows:
        raise UnreadVectorError
    return found
