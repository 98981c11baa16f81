"""Bounds the footer of a Parquet file before deltalake reads it, which does not.

A footer is a struct of Thrift's compact protocol (parquet.thrift, `FileMetaData`). The tree of columns is built by
recursion: 80 KB that nest 10,000 levels overflow the stack of a thread of deltalake, which ends the process. Here it is
walked without recursion, and what no writer of Parquet writes is refused. pyarrow has bounds of its own, and Spark
makes an overflow an error of the task.
"""

from __future__ import annotations

from collections.abc import Callable

FOOTER_BYTES_MAX = 16 * 1024**2
"""Bytes of a Parquet file's footer; a file that has more is refused."""

COLUMNS_DEPTH_MAX = 100
"""Levels of columns within columns that a Parquet file may have, as pyarrow reads them; one with more is refused."""

STRUCTS_DEPTH_MAX = 32
"""Levels of structs within structs of a footer; those of Parquet's definition have 8."""

LISTED_MAX = 500_000
"""Entries of all lists of a footer, those of its columns and row groups above all; a file with more is refused."""

TAIL_BYTES = 64 * 1024
"""Bytes of a file's end that are read at once; most footers are shorter."""

END_BYTES = 8
"""Bytes of a Parquet file's end that say how long its footer is."""

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_VARINT_BYTES_MAX = 10
_BOOLS, _BYTE, _VARINTS, _DOUBLE, _BINARY, _LIST, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, 9, 12
_MORE = 15
"""Instead of a list's length: that follows."""
_SCHEMA, _NUM_CHILDREN = 2, 5

ReadAt = Callable[[int, int], bytes]
"""So many bytes (2nd) from a place on (1st)."""


class OddFooterError(ValueError):
    """A footer is not handed to any library: its message says why."""


def check_footer(read_at: ReadAt, size: int) -> None:
    """Check the footer of a file of `size` bytes. Raises OddFooter.

    A file that is not Parquet passes, as every library reports that itself.
    """
    begin = max(0, size - TAIL_BYTES)
    tail = read_at(begin, size - begin)
    length = require_short_footer(tail)
    if not length or length > size - END_BYTES:
        return  # every library says so
    whole = length <= len(tail) - END_BYTES
    footer = tail[-END_BYTES - length : -END_BYTES] if whole else read_at(size - END_BYTES - length, length)
    try:
        _FooterWalk(footer).walk()
    except IndexError:
        raise OddFooterError("its footer ends within a field") from None


def require_short_footer(end: bytes) -> int:
    """Return how many bytes a footer has by the last ones of its file; 0: that is no Parquet file. Raises OddFooter."""
    if end[-4:] == _ENCRYPTED:
        raise OddFooterError("its footer is encrypted")
    length = int.from_bytes(end[-8:-4], "little") if end[-4:] == _MAGIC else 0
    if length > FOOTER_BYTES_MAX:
        raise OddFooterError(f"its footer has {length} bytes, more than {FOOTER_BYTES_MAX}")
    return length


class _FooterWalk:
    """One pass over a footer. Raises OddFooter, and IndexError beyond its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._listed = 0
        self._parents: list[int] = []
        """How many children each column that is open still has."""

    def walk(self) -> None:
        frames: list[tuple[int, int]] = []  # the field that holds a struct, and how many of a list follow on that one
        field = left = children = 0
        while True:
            header = self._byte()
            if not header:  # the end of a struct
                if len(frames) == 1:
                    if frames[0][0] == _SCHEMA:
                        self._take_column(children)
                    children = 0
                if left:
                    field, left = 0, left - 1
                elif frames:
                    field, left = frames.pop()
                else:
                    return
                continue
            kind, step = header & 15, header >> 4
            field = field + step if step else self._number()
            if kind in (_STRUCT, _LIST):
                if structs := 1 if kind == _STRUCT else self._list():
                    frames.append((field, left))
                    field, left = 0, structs - 1
                    if len(frames) > STRUCTS_DEPTH_MAX:
                        raise OddFooterError(f"its footer nests structs more than {STRUCTS_DEPTH_MAX} levels deep")
            elif kind in _VARINTS and field == _NUM_CHILDREN and len(frames) == 1:
                children = self._number()
            elif kind not in _BOOLS:
                self._pass_over(kind)

    def _list(self) -> int:
        """Return how many structs the list has, which follow; pass over entries of other kinds."""
        header = self._byte()
        kind, count = header & 15, header >> 4
        if count == _MORE:
            count = self._varint()
        self._listed += count
        if self._listed > LISTED_MAX:
            raise OddFooterError(f"its footer lists more than {LISTED_MAX} columns and parts of them")
        if kind == _STRUCT:
            return count
        for _ in range(count):
            self._pass_over(_BYTE if kind in _BOOLS else kind)
        return 0

    def _pass_over(self, kind: int) -> None:
        if kind in _VARINTS:
            self._varint()
        elif kind == _BINARY:
            length = self._varint()
            self._at += length
        elif kind in (_BYTE, _DOUBLE):
            self._at += 1 if kind == _BYTE else 8
        else:
            raise OddFooterError(f"its footer has a value of the kind {kind}, which Parquet does not have")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        for _ in range(_VARINT_BYTES_MAX):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise OddFooterError("its footer has a number without an end")

    def _number(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _take_column(self, children: int) -> None:
        """Columns come in the order of their tree, each with the number of its children."""
        parents = self._parents
        while parents and not parents[-1]:
            parents.pop()
        if parents:
            parents[-1] -= 1
        if children > 0:
            parents.append(children)
        if len(parents) > COLUMNS_DEPTH_MAX:
            raise OddFooterError(f"it nests columns more than {COLUMNS_DEPTH_MAX} levels deep")
