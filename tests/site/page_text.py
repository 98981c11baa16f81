"""What a page of the documents becomes on the site: links that lead out of docs/, pictures of diagrams, escaped pipes.

The documents are read in the repository too, where their links are relative paths. The site has the pages of docs/,
a few others from the project's folder (`HOSTED`) and those that are generated. A link to any other file of the project
becomes the file's path: the site has no copy of the code, and names no place where there is one.
"""

from __future__ import annotations

import hashlib
import html
import posixpath
import re
from collections.abc import Callable, Mapping

HOSTED: Mapping[str, str] = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "docs/README.md": "pages.md",
}
"""Files of the project that are pages of the site under another name. The site's first page is that of the project."""

MERMAID = re.compile(r"^```mermaid\n(?P<source>.*?)^```$", re.MULTILINE | re.DOTALL)

_PARTS = re.compile(
    r"(?P<code>^```.*?^```$|`[^`\n]+`)|(?P<picture>!)?\[(?P<text>[^\[\]]+)\]\((?P<to>[^)\s]+)\)", re.M | re.S
)
_TABLE_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")


class MissingPictureError(Exception):
    """A diagram that nobody has drawn since its text was changed."""


def site_page(path: str) -> str | None:
    """Return the page of the site that a file of the project is, by its path in the project; None if it is none."""
    if path in HOSTED:
        return HOSTED[path]
    return path.removeprefix("docs/") if path.startswith("docs/") and path.endswith((".md", ".svg", ".png")) else None


def site_text(text: str, path: str) -> str:
    """Return the text of a document as the site has it; `path` is that of the document in the project."""

    def replaced(found: re.Match[str]) -> str:
        if found["code"] or re.match(r"[a-z]+:|#", found["to"]):
            return found[0]
        target, hash_, anchor = found["to"].partition("#")
        to = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        page = site_page(to)
        if page is None:
            shown = found["text"]
            return shown if "`" in shown else f"{shown} (`{to}`)"
        here = posixpath.dirname(site_page(path) or "")
        return f"{found['picture'] or ''}[{found['text']}]({posixpath.relpath(page, here or '.')}{hash_}{anchor})"

    return _TABLE_ROW.sub(_without_escapes, _PARTS.sub(replaced, text))


def _without_escapes(row: re.Match[str]) -> str:
    """Return a row whose code has bare pipes: a table of the site ends no cell within code, and shows a backslash."""
    return _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0])


def picture_name(source: str) -> str:
    """Return the name of a diagram's picture: another text has another one, so none can be out of date."""
    return f"{hashlib.sha256(source.encode()).hexdigest()[:16]}.svg"


def diagrams(text: str) -> list[str]:
    """Return the texts of the diagrams of a document."""
    return [found["source"] for found in MERMAID.finditer(text)]


def drawn(text: str, picture: Callable[[str], str | None]) -> str:
    """Return a page with `picture`(name) in the place of each diagram. Raises MissingPictureError."""

    def figure(found: re.Match[str]) -> str:
        source = found["source"]
        svg = picture(picture_name(source))
        if svg is None:
            raise MissingPictureError(f"run scripts/draw-diagrams: nobody has drawn {source.splitlines()[:2]}")
        below = f"<details>\n<summary>as text</summary>\n<pre>{html.escape(source.rstrip())}</pre>\n</details>"
        return f'<figure class="diagram">\n{svg.strip()}\n</figure>\n{below}\n'

    return MERMAID.sub(figure, text)
