"""What is wrong with a site that was built: what its pages would load from elsewhere, and Markdown that stayed text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

NEVER_LOADED = frozenset(
    {
        "http://lunrjs.com",  # a comment
        "http://tartarus.org/",  # a comment
        "https://api.github.com/repos/",  # a repository's stars: the site names no repository
        "https://api.github.com/users/",  # as above
        "https://bit.ly/2s3ChXG",  # the text of a warning
        "https://clipboardjs.com/",  # a comment
        "https://unpkg.com/mermaid@11/dist/mermaid.min.js",  # only for an element of the class `mermaid`
        "https://unpkg.com/resize-observer-polyfill",  # only for browsers that are older than the theme supports
    }
)
"""Addresses in the theme's scripts that no page of the site makes them load."""

_LOADING = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "image": ("href", "xlink:href"),
    "img": ("src", "srcset"),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src", "srcset"),
    "use": ("href", "xlink:href"),
    "video": ("src", "poster"),
}
_REMOTE = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)
_ADDRESS = re.compile(r"https?://[\w./@-]+")
_STYLE_LOADS = re.compile(r"(?:url\(|@import)\s*[\"']?\s*((?:https?:)?//[^\"')\s]+)", re.IGNORECASE)
_LEFT_OVER = re.compile(r"^\s*(?:\||- |\d+\. |```|#{1,6} )|\]\([^)\s]*\)|^\s*:?-{2,}\s*\|", re.MULTILINE)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self._paragraph: list[str] | None = None
        self._code = 0
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        for name in _LOADING.get(tag, ()):
            if _REMOTE.match(given.get(name, "")):
                self.faults.append(f"<{tag}> loads {given[name]}")
        self._see_style(given.get("style", ""))
        if "mermaid" in given.get("class", "").split():
            self.faults.append("a diagram was not drawn")
        self._style = tag == "style"
        self._code += tag in ("code", "pre", "script")
        if tag == "p":
            self._paragraph = []

    def handle_endtag(self, tag: str) -> None:
        self._style = False
        self._code -= tag in ("code", "pre", "script")
        if tag == "p" and self._paragraph is not None:
            text = "".join(self._paragraph)
            if _LEFT_OVER.search(text):
                self.faults.append(f"Markdown that stayed text: {text[:100]}")
            self._paragraph = None

    def handle_data(self, data: str) -> None:
        if self._style:
            self._see_style(data)
        elif self._paragraph is not None:
            self._paragraph.append("code" if self._code else data)

    def _see_style(self, text: str) -> None:
        self.faults.extend(f"a style loads {address}" for address in _STYLE_LOADS.findall(text))


def faults_of_page(text: str) -> list[str]:
    """Return what is wrong with a page of HTML."""
    page = _Page()
    page.feed(text)
    return page.faults


def faults_of_style(text: str) -> list[str]:
    """Return what a style sheet would load from elsewhere."""
    return [f"loads {address}" for address in _STYLE_LOADS.findall(text)]


def faults_of_script(text: str) -> list[str]:
    """Return the addresses in a script of which nobody knows that no page makes it load them."""
    spaces = {address for address in _ADDRESS.findall(text) if address.startswith("http://www.w3.org/")}
    return [f"may load {address}" for address in sorted(set(_ADDRESS.findall(text)) - spaces - NEVER_LOADED)]


def faults(site: Path) -> Iterator[str]:
    """Yield all that is wrong with the site in a folder, each with its file.

    The words of languages that the site is not written in are the search's, and no page loads them.
    """
    kinds = {".html": faults_of_page, ".css": faults_of_style, ".js": faults_of_script}
    for path in sorted(site.rglob("*")):
        name = path.relative_to(site).as_posix()
        if path.suffix in kinds and not name.startswith("assets/javascripts/lunr/"):
            yield from (f"{name}: {fault}" for fault in kinds[path.suffix](path.read_text()))
