"""The process of an engine: `python -m benchmarks.propagation.engine_process NAME`, as `child_driver` starts it.

Each line of stdin is a command, a JSON object; each is answered by a line on stdout when it has been carried out. The
end of stdin is the end of the process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.propagation.engine import Engine, Tables
from benchmarks.propagation.medallion import chosen


def make_engine(name: str, tables: Tables, options: dict[str, Any]) -> Engine:
    match name:
        case "duckdb":
            from benchmarks.propagation.duckdb_engine import DuckdbEngine

            return DuckdbEngine(tables)
        case "spark":
            from benchmarks.propagation.spark_engine import SparkEngine

            return SparkEngine(tables)
        case "streaming":
            from benchmarks.propagation.streaming_engine import StreamingEngine

            return StreamingEngine(tables, **options)
        case _:
            raise ValueError(f"there is no engine {name}")


def main() -> None:
    # Only answers go to stdout, whatever a library prints.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine: Engine | None = None
    try:
        for line in sys.stdin:
            command = json.loads(line)
            match command["command"]:
                case "start":
                    derived = chosen(command["derived"])
                    tables = Tables(Path(command["folder"]), command["sources"], derived)
                    engine = make_engine(sys.argv[1], tables, command["options"])
                case "create":
                    assert engine is not None
                    engine.create()
                case "resume":
                    assert engine is not None
                    engine.resume()
                case "changed":
                    assert engine is not None
                    engine.recompute(command["tables"])
                case "settle":
                    assert engine is not None
                    engine.settle()
                case other:
                    raise ValueError(f"there is no command {other}")
            answers.write("{}\n")
            answers.flush()
    finally:
        if engine is not None:
            engine.stop()


if __name__ == "__main__":
    main()
