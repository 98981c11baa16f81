"""What pip installs is ours: on PyPI the name `iscp` is another project's, whose code would run where ours should."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from iscp.model.values.untrusted_values import DISTRIBUTION, install_command

ROOT = Path(__file__).parents[2]
FOREIGN = re.compile(
    r"\b(?:pip|pipx|uv|poetry|conda) (?:\S+ )*?(?:install|add|download) (?:-\S+ )*['\"]?iscp(?![\w.-]|\\?\[)"
    r"|(?<![\w./-])iscp\\?\[(?:\{|\w)"  # with an extra
    r"|^[\s'\"-]*iscp\s*(?:[=<>~!]=|@)"  # a requirement
)
GENERATED = ("iscp/wire/", "tests/data/", "tests/golden/")


def tracked() -> list[Path]:
    said = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in said.split("\0") if name and not name.startswith(GENERATED)]


def project(path: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / path).read_text())["project"]
    return found


def test_documents_remedies_and_dependencies_name_the_distribution() -> None:
    files = [each for each in tracked() if each.is_file() and each != Path(__file__)]
    assert len(files) > 1000
    found = []
    for file in files:
        try:
            lines = file.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        found += [
            f"{file.relative_to(ROOT)}:{number}: {line}" for number, line in enumerate(lines, 1) if FOREIGN.search(line)
        ]
    assert found == []


def test_what_would_name_another_distribution_is_found() -> None:
    for line in (
        "pip install iscp",
        "python -m pip install --upgrade 'iscp'",
        "pip install 'iscp[node]'",
        "uv add iscp",
        "Install iscp[demo]",
        'dependencies = ["iscp[node]"]',
        "iscp==0.1.0",
    ):
        assert FOREIGN.search(line), line
        assert not FOREIGN.search(re.sub(r"\biscp\b", DISTRIBUTION, line)), line
    assert not FOREIGN.search("helm install lake deploy/helm/iscp")


def test_the_project_is_the_distribution_that_remedies_name() -> None:
    ours = project("pyproject.toml")
    assert ours["name"] == DISTRIBUTION != "iscp"
    assert install_command("demo") == f"pip install '{DISTRIBUTION}[demo]'"
    assert project("examples/pyproject.toml")["dependencies"] == [f"{DISTRIBUTION}[node]"]
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    assert [each["name"] for each in locked if "editable" in each["source"]] == [DISTRIBUTION]


def test_what_setup_installs_is_pinned_by_its_sum() -> None:
    """uv itself, what it installs, and the tools of the chart; the jars' sums are in the package."""
    for file in ("scripts/uv.txt", "deploy/helm/tools.txt"):
        text = (ROOT / file).read_text().replace("\\\n", " ")
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        assert lines
        assert all("==" in line or " @ " in line for line in lines)
        assert all("--hash=sha256:" in line for line in lines)
    for script in ("scripts/setup", "deploy/image/Containerfile"):
        installs = re.findall(r"pip(?:\"?) install --[^\n]*", (ROOT / script).read_text())
        assert installs
        assert all("--require-hashes" in each for each in installs)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {re.split(r"[<>=~!]", each)[0] for each in settings["build-system"]["requires"]}
    pinned = {each.split("==")[0] for each in settings["tool"]["uv"]["build-constraint-dependencies"]}
    assert wanted <= pinned, "of what builds our own wheel uv holds versions alone"
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    from_registries = [each for each in locked if "registry" in each["source"]]
    assert len(from_registries) >= 50
    for each in from_registries:
        files = [*each.get("wheels", ()), *([each["sdist"]] if "sdist" in each else [])]
        assert files
        assert all(file["hash"].startswith("sha256:") for file in files), json.dumps(each["name"])


def test_the_environment_that_setup_makes_has_the_pip_that_readme_uses() -> None:
    """uv makes environments without one: the pip that a shell finds then is the machine's, which Debian's refuses."""
    assert "pip install jupyterlab" in (ROOT / "README.md").read_text()
    run = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, text=True, check=True)
    assert f"from {sys.prefix}" in run.stdout
    (dev,) = (each for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"] if each["name"] == DISTRIBUTION)
    assert {"name": "pip"} in dev["dev-dependencies"]["dev"]
