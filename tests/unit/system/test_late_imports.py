"""A module's stand-in imports it at the first use of a name, and has its names from then on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from iscp.system.late_imports import LateModule, T

SHOWN = """
import sys
from iscp.system.late_imports import T
before = "pyspark" in sys.modules
kind = T.LongType()
print(before, "pyspark" in sys.modules, kind.simpleString())
"""


def test_a_module_is_imported_when_a_name_is_used() -> None:
    shown = subprocess.run([sys.executable, "-c", SHOWN], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["False", "True", "bigint"]


AT_ONCE = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from iscp.system.late_imports import A, E, F, T
sys.setswitchinterval(1e-6)
begin = Barrier(4)

def use(module, name):
    begin.wait()
    return getattr(module, name).__name__

with ThreadPoolExecutor(4) as threads:
    uses = [(T, "LongType"), (F, "col"), (A, "to_arrow_type"), (E, "PySparkException")]
    print(*threads.map(use, *zip(*uses)))
"""


def test_threads_that_first_use_parts_of_one_package_at_once_see_all_of_it() -> None:
    """Parts of pyspark import each other in circles: without an order most of these runs end by an ImportError."""
    for _ in range(3):
        run = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, check=False)
        assert (run.stdout.split(), run.stderr) == (["LongType", "col", "to_arrow_type", "PySparkException"], "")


WITHOUT_PANDAS = """
import sys
import pyarrow as pa
from iscp.system.late_imports import do_without_pandas
do_without_pandas()
table = pa.table({"a": pa.array([1, None])})
before = "pandas" in sys.modules
frame = table.to_pandas()
import pandas
series = pa.array(pandas.Series([1.0, float("nan")]))
print(before, frame["a"].isna().tolist() == [False, True], series.null_count)
"""


def test_arrow_imports_pandas_for_a_frame_and_not_for_a_value() -> None:
    """From then on it knows a series of pandas, whose NaN is null."""
    shown = subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["False", "True", "1"]


def test_names_are_those_of_the_module() -> None:
    from pyspark.sql import types

    assert types.StructType is T.StructType
    with pytest.raises(AttributeError, match="StructTipe"):
        getattr(T, "StructTipe")  # noqa: B009
    assert not hasattr(LateModule("there.is.none"), "__path__"), "who looks what it is imports nothing"
