"""What mkdocs calls while it builds the site (`hooks` in mkdocs.yml)."""

from __future__ import annotations

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tests.site.drawing import PICTURES, ROOT
from tests.site.generated_pages import generated
from tests.site.page_text import HOSTED, MissingPictureError, drawn, site_text

_HOSTED_FROM = {page: path for path, page in HOSTED.items()}

OPTIONAL = frozenset({"metrics.md"})
"""Pages that have their place in the navigation before they are written."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Return the configuration with a navigation that has each page of a folder, and optional pages if they exist."""
    config.nav = _present(config.nav)
    return config


def _present(nav: Any) -> Any:
    """Return the navigation without the optional pages that are not there; a folder becomes its pages."""
    match nav:
        case list():
            kept = [_present(each) for each in nav]
            return [each for each in kept if each is not None]
        case dict():
            inner = {title: _present(each) for title, each in nav.items()}
            return {title: each for title, each in inner.items() if each is not None} or None
        case str() if nav.endswith("/"):
            pages = [path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / "docs" / nav).glob("*.md"))]
            pages += [page for page in generated() if page.startswith(nav)]
            return sorted(pages, key=lambda page: not page.endswith("README.md"))
        case _:
            return None if nav in OPTIONAL and not (ROOT / "docs" / nav).exists() else nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files with those of the project that lie out of docs/, and with the generated pages."""
    texts = {page: (ROOT / path).read_text() for path, page in HOSTED.items()}
    texts |= generated()
    for name in ("README.md", *texts):
        if known := files.get_file_from_path(name):
            files.remove(known)
    for page, text in texts.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page's text as the site has it. Raises PluginError if a diagram has no picture."""
    source = page.file.src_uri
    text = site_text(markdown, _HOSTED_FROM.get(source, f"docs/{source}"))
    try:
        return drawn(text, _picture)
    except MissingPictureError as error:
        raise PluginError(f"{source}: {error}") from error


def _picture(name: str) -> str | None:
    path = PICTURES / name
    return path.read_text() if path.exists() else None
