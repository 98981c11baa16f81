"""The one version of the distribution, the package, the lock and the chart, in the places that state it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

NUMBER = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"
"""A release, or a trial before one, as in 0.2.0 and 0.2.0rc1: what PyPI and Helm both take."""

PLACES = {
    "pyproject.toml": rf'(?m)^(version = "){NUMBER}(")$',
    "iscp/__init__.py": rf'(?m)^(__version__ = "){NUMBER}(")$',
    "uv.lock": rf'(name = "iscp-delta"\nversion = "){NUMBER}(")',
    "deploy/helm/iscp/Chart.yaml": rf"(?m)^(version: ){NUMBER}()$",
    "deploy/helm/iscp/Chart.yaml (appVersion)": rf'(?m)^(appVersion: "){NUMBER}(")$',
}
"""Each place, with a pattern of its one line; the image takes its tag from the first."""


def stated_versions(root: Path) -> Mapping[str, str]:
    """Return the version that each place states. Raises ValueError where one states none, or more than one."""
    found = {}
    for place, pattern in PLACES.items():
        lines = [match[0] for match in re.finditer(pattern, _file(root, place).read_text())]
        if len(lines) != 1:
            raise ValueError(f"{place} states {len(lines)} versions, not one")
        (found[place],) = re.findall(NUMBER, lines[0])
    return found


def one_version(root: Path) -> str:
    """Return the version that all places state. Raises ValueError if they differ."""
    found = stated_versions(root)
    if len(set(found.values())) != 1:
        raise ValueError(f"the places state different versions: {dict(found)}")
    return next(iter(found.values()))


def set_version(root: Path, version: str) -> None:
    """Write it in all places. Raises ValueError for what is no version."""
    if not re.fullmatch(NUMBER, version):
        raise ValueError(f"{version!r} is no version such as 0.2.0 or 0.2.0rc1")
    stated_versions(root)
    for place, pattern in PLACES.items():
        file = _file(root, place)
        file.write_text(re.sub(pattern, rf"\g<1>{version}\g<2>", file.read_text(), count=1))


def _file(root: Path, place: str) -> Path:
    return root / place.partition(" ")[0]
