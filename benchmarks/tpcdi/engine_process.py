"""The process of an engine: `python -m benchmarks.tpcdi.engine_process NAME FOLDER SOURCES`, as `contest` starts it.

SOURCES is a JSON object of places. Each line of stdin is a JSON list of changed sources; each is answered by a line on
stdout, a list of the views that were brought on. The end of stdin is the end of the process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from benchmarks.tpcdi.engines import ENGINES


def main() -> None:
    # Only answers go to stdout, whatever a library prints.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name, folder, sources = sys.argv[1:]
    engine = ENGINES[name](Path(folder), json.loads(sources))
    try:
        for line in sys.stdin:
            answers.write(json.dumps([each.to_json() for each in engine.bring_on(json.loads(line))]) + "\n")
            answers.flush()
    finally:
        engine.stop()


if __name__ == "__main__":
    main()
