"""Reads each poisoned table as a node does without Spark, one after the other: a line of JSON for each.

`python -m tests.fakes.poison_program DIRECTORY`, in a process of its own: what ends it, or takes its memory, is seen.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from iscp.delta.log.commits import newest_version
from iscp.delta.source.change_source import DeltaChangeSource, DeltaProbe
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.model.job.iteration import Bounds
from iscp.model.values.errors import IscpError
from iscp.model.values.watermark import Watermark
from iscp.ports.source import ChangesUnavailableError
from tests.fakes.poisoned_tables import POISONS, table_in

NO_SESSION: Any = None


def readings(uri: str) -> Iterator[Callable[[], object]]:
    """What a node does with a source: it notices it, describes it, reads its changes, searches rows, reads all rows."""
    probe, source = DeltaProbe(), DeltaChangeSource()
    keys = pa.table({"id": pa.array([7, 2], pa.int64())})
    yield lambda: probe.probe(uri, probe.first_probe(uri))
    yield lambda: DeltaCatalog().describe(uri).columns
    yield lambda: DeltaCatalog().size(uri)
    yield lambda: _changes(source, uri)
    yield lambda: source.rows_with(uri, newest_version(uri), keys, ("id", "v"), 9)
    yield lambda: source.size(uri, newest_version(uri))


def _changes(source: DeltaChangeSource, uri: str) -> object:
    span = source.resolve(uri, Watermark(1, 0.0), None, Bounds())
    return source._read_small(NO_SESSION, uri, span, ("id", "v"), True)


def outcome(reading: Callable[[], object]) -> dict[str, Any]:
    try:
        found = reading()
        return {"found": str(getattr(found, "held", found))}
    except IscpError as error:
        return {"code": error.code.name, "error": str(error)}
    except ChangesUnavailableError as error:
        return {"code": "COMPARED", "error": str(error)}


def _say(said: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def main(directory: Path) -> None:
    for poison in POISONS:
        name = poison.__name__
        uri, elsewhere = table_in(directory / name)
        before, began_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        _say({"begun": name})
        poison(uri, elsewhere)
        outcomes = [outcome(reading) for reading in readings(uri)]
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        said = {"name": name, "grown_kib": grown, "took_s": time.monotonic() - began_s, "outcomes": outcomes}
        _say(said)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
