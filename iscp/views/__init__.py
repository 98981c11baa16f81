"""Queries whose results follow the changes of their tables, on any SparkSession.

    session = SparkSession.builder.config("spark.jars", str(jar())).getOrCreate()
    query = analyze(session, "SELECT a, sum(b) AS b FROM t GROUP BY a", {"t": before.schema})
    explain(query)  # how each operator follows a change
    all_rows(query, {"t": before})
    with follow(query, {"t": TableFrames(before, after, changed)}) as rows: ...

`changed` has the rows that came and went, with 1 or -1 as WEIGHT, and the `rows` of the result have WEIGHT too. No
node, no etcd and no job log are needed, nor tables on disk; what the functions raise is in `iscp.errors`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iscp.views.library import WEIGHT, AnalyzedQuery, TableFrames, all_rows, analyze, explain, follow, jar

__all__ = ["WEIGHT", "AnalyzedQuery", "TableFrames", "all_rows", "analyze", "explain", "follow", "jar"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: a node starts before it needs Spark.
    if name in __all__:
        from iscp.views import library

        return getattr(library, name)
    raise AttributeError(f"module 'iscp.views' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
