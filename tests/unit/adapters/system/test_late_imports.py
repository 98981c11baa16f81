"""A module's stand-in imports it at the first use of a name, and has its names from then on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from iscp.adapters.system.late_imports import LateModule, T

SHOWN = """
import sys
from iscp.adapters.system.late_imports import T
before = "pyspark" in sys.modules
kind = T.LongType()
print(before, "pyspark" in sys.modules, kind.simpleString())
"""


def test_a_module_is_imported_when_a_name_is_used() -> None:
    shown = subprocess.run([sys.executable, "-c", SHOWN], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["False", "True", "bigint"]


def test_names_are_those_of_the_module() -> None:
    from pyspark.sql import types

    assert types.StructType is T.StructType
    with pytest.raises(AttributeError, match="StructTipe"):
        getattr(T, "StructTipe")  # noqa: B009
    assert not hasattr(LateModule("there.is.none"), "__path__"), "who looks what it is imports nothing"
