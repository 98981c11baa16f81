"""CHANGELOG.md and the fragments that it is made of: a file for each change, so that branches do not conflict.

`changelog.d/NAME.KIND.md` has one line of the changelog, or a few, without the dash that it begins with there. NAME is
free; KIND is one of KINDS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

FOLDER = "changelog.d"
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
"""As in Keep a Changelog, in the order in which they stand."""

FRAGMENT = re.compile(rf"(?P<name>[a-z0-9][a-z0-9_-]*)\.(?P<kind>{'|'.join(KINDS)})\.md")
LINE_CHARS_MAX = 300
_UNRELEASED = "## [Unreleased]"


def read_fragments(folder: Path) -> Mapping[str, list[str]]:
    """Return the texts by their kinds, in the order of the files' names: none where there is no folder, which git does
    not keep if it is empty. Raises ValueError with all that is wrong.
    """
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    faults = []
    for path in sorted(folder.glob("*")):
        if (named := FRAGMENT.fullmatch(path.name)) is None:
            faults.append(f"{path.name}: is not named NAME.KIND.md, of one of the kinds {', '.join(KINDS)}")
            continue
        text = path.read_text().strip()
        if fault := fault_of(text):
            faults.append(f"{path.name}: {fault}")
        found[named["kind"]].append(text)
    if faults:
        raise ValueError("\n".join(faults))
    return found


def fault_of(text: str) -> str:
    """Return what is wrong with a fragment's text; empty: nothing."""
    if not text:
        return "is empty"
    if text.startswith(("- ", "* ", "#")):
        return "begins with a sign of its own: the dash comes with the release"
    if max(map(len, text.splitlines())) > LINE_CHARS_MAX:
        return f"has a line of more than {LINE_CHARS_MAX} characters"
    if not text.endswith((".", "**", ")")):
        return "is no whole sentence"
    return ""


def with_fragments(changelog: str, fragments: Mapping[str, list[str]]) -> str:
    """Return the text of CHANGELOG.md with the fragments in its section of what is not released."""
    before, body, after = _split(changelog)
    sections = {heading.lower(): text for heading, text in re.findall(r"(?ms)^### (\w+)\n(.*?)(?=^### |\Z)", body)}
    if unknown := sections.keys() - set(KINDS):
        raise ValueError(f"what is not released has sections of no kind: {', '.join(sorted(unknown))}")
    parts = []
    for kind in KINDS:
        lines = [text] if (text := sections.get(kind, "").strip()) else []
        lines += ["- " + each.replace("\n", "\n  ") for each in fragments.get(kind, [])]
        if lines:
            parts.append(f"### {kind.capitalize()}\n\n" + "\n".join(lines) + "\n\n")
    return before + "".join(parts) + after


def released(changelog: str, version: str, date: str) -> str:
    """Return the text in which what is not released is what `version` has, from `date` on (YYYY-MM-DD).

    Raises ValueError where there is nothing, or the version is there already.
    """
    before, body, after = _split(changelog)
    if not body.strip():
        raise ValueError(f"nothing has changed since the last release: {FOLDER} has no fragment")
    if f"## [{version}]" in changelog:
        raise ValueError(f"CHANGELOG.md has {version} already")
    return f"{before}## [{version}] - {date}\n\n{body}{after}"


def notes_of(changelog: str, version: str) -> str:
    """Return what CHANGELOG.md says of a version, without its heading. Raises ValueError if it does not."""
    found = re.search(rf"(?ms)^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog)
    if found is None or not found[1].strip():
        raise ValueError(f"CHANGELOG.md says nothing of {version}")
    return found[1].strip() + "\n"


def _split(changelog: str) -> tuple[str, str, str]:
    """Return what stands before, in and after the section of what is not released."""
    begin = changelog.index(_UNRELEASED) + len(_UNRELEASED) + 1
    following = re.search(r"(?m)^## \[", changelog[begin:])
    end = begin + following.start() if following else len(changelog)
    return changelog[:begin].rstrip("\n") + "\n\n", changelog[begin:end].lstrip("\n"), changelog[end:]
