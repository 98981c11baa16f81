"""Packages that offer consumers or triggers, installed for one test: a module, and the entry points that name it."""

from __future__ import annotations

from pathlib import Path


def install(root: Path, module: str, code: str, group: str, **entries: str) -> None:
    """As pip would: `code` as `module` below `root`, with `entries` (name = "Class") in `group`.

    `root` has to come onto the path of those who are to see it.
    """
    root.mkdir(exist_ok=True)
    (root / f"{module}.py").write_text(code)
    about = root / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"{name} = {module}:{value}" for name, value in entries.items()]
    (about / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
