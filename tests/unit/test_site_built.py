"""What is wrong with a built site is found: loads from elsewhere, and Markdown that stayed text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.site.built_site import faults, faults_of_page, faults_of_script, faults_of_style


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://cdn.example/a.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/a.css">',
        '<img src="http://example.org/a.png">',
        '<img srcset="https://example.org/a.png 2x">',
        '<p style="background: url(https://example.org/a.png)">x</p>',
        "<style>@import 'https://example.org/a.css'</style>",
        '<pre class="mermaid">graph</pre>',
        "<p>| a | b |</p>",
        "<p>text\n- a point</p>",
        "<p>a [link](there.md)</p>",
    ],
)
def test_what_is_wrong_with_a_page_is_found(page: str) -> None:
    assert len(faults_of_page(f"<html><body>{page}</body></html>")) == 1


def test_links_to_elsewhere_and_code_are_in_order() -> None:
    page = '<p><a href="https://example.org">x</a> <code>| a |</code> 3 | 4</p><script src="assets/a.js"></script>'
    assert faults_of_page(page) == []
    assert faults_of_style("a { background: url('data:image/svg+xml;charset=utf-8,<svg/>') }") == []


def test_a_style_and_a_script_that_load_from_elsewhere_are_found() -> None:
    assert faults_of_style("@font-face { src: url(https://example.org/a.woff2) }") == [
        "loads https://example.org/a.woff2"
    ]
    assert faults_of_script('fetch("https://example.org/a")') == ["may load https://example.org/a"]
    assert faults_of_script('"http://www.w3.org/2000/svg"; "https://api.github.com/repos/"') == []


def test_all_files_of_a_site_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<script src="https://example.org/a.js"></script>')
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets/a.js").write_text('import("https://example.org/b")')
    assert list(faults(tmp_path)) == [
        "a.html: <script> loads https://example.org/a.js",
        "assets/a.js: may load https://example.org/b",
    ]
