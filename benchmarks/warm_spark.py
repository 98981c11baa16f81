"""An application of Spark that stays: for each line on stdin it computes views from all rows, and says `done`.

`python -m benchmarks.warm_spark JSON`, a list of [query, {name: table}, target]. Its settings are those of a node.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from iscp.spark.session import SparkRuntime, SparkSettings


def main() -> None:
    """Serve lines until stdin ends."""
    queries = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="iscp-warm-") as work_dir:
        runtime = SparkRuntime.start(SparkSettings(work_dir=Path(work_dir)))
        try:
            for _ in sys.stdin:
                for sql, tables, target in queries:
                    for name, uri in tables.items():
                        runtime.root.read.format("delta").load(uri).createOrReplaceTempView(name)
                    runtime.root.sql(f"CREATE OR REPLACE TABLE delta.`{target}` USING delta AS {sql}")
                print("done", flush=True)
        finally:
            runtime.stop()


if __name__ == "__main__":
    main()
