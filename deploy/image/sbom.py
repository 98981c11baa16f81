"""Writes what is in the image as a CycloneDX document: `sbom.py CACHE FILE`, run in the image, by its Python.

Python packages, the jars of the cache and of pyspark, and Debian's packages, each with its version; jars by their sum.
Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import quote

Component = dict[str, object]

_JAR = re.compile(r"(?P<name>.+?)-(?P<version>\d[\w.+-]*)\.jar")


def python_packages() -> Iterator[Component]:
    for each in distributions():
        name = re.sub(r"[-_.]+", "-", each.metadata["Name"]).lower()
        licence = each.metadata["License-Expression"] or each.metadata["License"] or ""
        component = _component("library", name, each.version, f"pkg:pypi/{name}@{each.version}")
        yield {**component, "licenses": [{"license": {"name": licence.splitlines()[0]}}]} if licence else component


def jars(files: Iterable[Path]) -> Iterator[Component]:
    for path in files:
        found = _JAR.fullmatch(path.name)
        name, version = (found["name"], found["version"]) if found else (path.stem, "")
        purl = f"pkg:generic/{quote(path.name)}"
        sums = [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}]
        yield {**_component("library", name, version, purl), "hashes": sums}


def debian_packages(listing: str) -> Iterator[Component]:
    """`listing`: a line a package, name, version and architecture with tabs between."""
    for line in listing.splitlines():
        name, version, architecture = line.split("\t")
        purl = f"pkg:deb/debian/{name}@{quote(version)}?arch={architecture}"
        yield _component("library", name, version, purl)


def _component(kind: str, name: str, version: str, purl: str) -> Component:
    return {"type": kind, "name": name, "version": version, "purl": purl, "bom-ref": purl}


def document(components: Iterable[Component]) -> str:
    """The components in the order of their names, each once."""
    unique = {str(each["bom-ref"]): each for each in components}
    parts = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1}
    return json.dumps({**parts, "components": [unique[key] for key in sorted(unique)]}, indent=1) + "\n"


def main(cache: str, file: str) -> None:
    import pyspark

    found = [*Path(cache).rglob("*.jar"), *(Path(pyspark.__file__).parent / "jars").glob("*.jar")]
    query = ["dpkg-query", "--show", "--showformat", "${Package}\\t${Version}\\t${Architecture}\\n"]
    listing = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    Path(file).write_text(document([*python_packages(), *jars(found), *debian_packages(listing)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
