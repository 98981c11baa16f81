"""A reader of the demo's changefeed, in a process of its own: it follows the feed, and writes at its end what that
comes to.

The reader ends when there is a file `end` beside what it writes: an Arrow file of the rows that a replay gives, and one
of JSON, with `changes`, how many there were, and `in_order`, whether each shard's came in the order of their ulids,
none twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from iscp import changefeed
from iscp.model.values.errors import TimedOut
from iscp.system.child_process import spawn, tail

PAGE_ROWS = 50_000
POLL_S = 0.5
END_WAIT_S = 120.0
LOOK_S = 0.1
END = "end"
_SIGN = "_sign"
_WRITES = pa.array(["insert", "update_postimage"])


@dataclass
class Replay:
    """The changes as they came: what each puts into a bag of rows, or takes from it."""

    changes: int = 0
    in_order: bool = True
    _parts: list[pa.Table] = field(default_factory=list)
    _last: dict[int, str] = field(default_factory=dict)

    def take(self, page: pa.Table) -> None:
        self.changes += len(page)
        for shard in page["shard"].unique().to_pylist():
            ulids = page.filter(pc.equal(page["shard"], shard))["ulid_text"].combine_chunks()
            risen = pc.all(pc.less(ulids[:-1], ulids[1:])).as_py() is not False
            self.in_order &= risen and self._last.get(shard, "") < ulids[0].as_py()
            self._last[shard] = ulids[-1].as_py()
        signs = pc.if_else(pc.is_in(page["operation"], value_set=_WRITES), 1, -1)
        rows = pa.Table.from_struct_array(page["row"])
        self._parts.append(rows.append_column(_SIGN, signs.cast(pa.int64())))

    def rows(self) -> pa.Table:
        """Return each row as often as it was put in and not taken out; with `_sign`, below 0 if it was taken out too
        often.
        """
        everything = pa.concat_tables(self._parts)
        names = [name for name in everything.column_names if name != _SIGN]
        sums = everything.group_by(names).aggregate([(_SIGN, "sum")]).rename_columns([*names, _SIGN])
        return sums.filter(pc.not_equal(sums[_SIGN], 0))


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of the process; `rows` as in Replay."""

    rows: pa.Table
    changes: int
    in_order: bool


class Follower:
    """The process, from outside."""

    def __init__(self, uri: str, root: Path) -> None:
        self._root = root
        root.mkdir()
        command = [sys.executable, "-m", "iscp.cli.demo.replay", uri, str(root)]
        self._child = spawn(command, root / "log", os.environ, death_signal=signal.SIGKILL)

    def finish(self) -> Replayed:
        """Have it read to the feed's end. Raises TimedOut where it does not come to it."""
        (self._root / END).touch()
        try:
            code = self._child.wait(END_WAIT_S)
        except subprocess.TimeoutExpired as error:
            raise TimedOut(f"the feed's reader has not come to its end: {tail(self._root / 'log')}") from error
        if code:
            raise TimedOut(f"the feed's reader has failed: {tail(self._root / 'log')}")
        with pa.ipc.open_file(self._root / "rows.arrow") as file:
            summary = json.loads((self._root / "summary.json").read_text())
            return Replayed(file.read_all(), summary["changes"], summary["in_order"])

    def stop(self) -> None:
        self._child.kill()
        self._child.wait()


def _wait_for_the_end(end: Path, over: threading.Event) -> None:
    while not end.exists():
        time.sleep(LOOK_S)
    over.set()


def main(uri: str, root: Path) -> None:
    over, replay = threading.Event(), Replay()
    threading.Thread(target=_wait_for_the_end, args=(root / END, over), daemon=True).start()
    with changefeed.open(uri) as feed:
        cursor = None
        for page in feed.follow(limit=PAGE_ROWS, poll_s=POLL_S, stop=over):
            replay.take(page.rows)
            cursor = page.cursor
        while len((page := feed.read(cursor, PAGE_ROWS)).rows):
            replay.take(page.rows)
            cursor = page.cursor
    rows = replay.rows()
    with pa.OSFile(str(root / "rows.arrow"), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as file:
        file.write_table(rows)
    (root / "summary.json").write_text(json.dumps({"changes": replay.changes, "in_order": replay.in_order}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
