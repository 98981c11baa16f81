"""Builds the site of docs/: `python -m tests.site.build [--check | --serve]`.

Without an option the site is written into build/site. --check builds it into a folder that is removed again. Both fail
by what mkdocs warns of, by what a page would load from elsewhere, and by Markdown that stayed text. --serve shows the
site at 127.0.0.1:8000, and builds it again when a page changes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.site.built_site import faults

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build/site"


def mkdocs(*arguments: str) -> int:
    """Run mkdocs on the project, and return its exit status."""
    environ = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-m", "mkdocs", *arguments], cwd=ROOT, env=environ, check=False).returncode


def build(site: Path) -> int:
    """Build the site into a folder, and return 1 if anything is wrong with it; stderr says what."""
    if mkdocs("build", "--quiet", "--strict", "--site-dir", str(site)):
        return 1
    found = list(faults(site))
    sys.stderr.writelines(f"{fault}\n" for fault in found)
    return bool(found)


def main(arguments: list[str]) -> int:
    match arguments:
        case ["--serve"]:
            return mkdocs("serve")
        case ["--check"]:
            with tempfile.TemporaryDirectory() as scratch:
                return build(Path(scratch) / "site")
        case []:
            return build(SITE)
        case _:
            sys.stderr.write("usage: scripts/docs [--check | --serve]\n")
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
