"""What a document becomes on the site, and that every document has its place there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.site.drawing import PICTURES, compact, sources
from tests.site.hooks import on_config
from tests.site.page_text import MissingPictureError, diagrams, drawn, picture_name, site_page, site_text

ROOT = Path(__file__).parents[2]
DIAGRAM = "```mermaid\nstateDiagram-v2\n  a --> b: <go>\n```\n"


@pytest.mark.parametrize(
    ("path", "text", "shown"),
    [
        ("docs/jobs.md", "[v](views.md#joins)", "[v](views.md#joins)"),
        ("docs/jobs.md", "[below](#grpc), [x](https://example.org/a)", "[below](#grpc), [x](https://example.org/a)"),
        ("docs/adr/0003-etcd-client.md", "[m](../operations.md)", "[m](../operations.md)"),
        ("docs/README.md", "[README](../README.md) [adr](adr/README.md)", "[README](index.md) [adr](adr/README.md)"),
        ("docs/adr/README.md", "[c](../../CONTRIBUTING.md)", "[c](../contributing.md)"),
        ("README.md", "![p](docs/demo.svg) [docs](docs/README.md)", "![p](demo.svg) [docs](pages.md)"),
        ("docs/iterations.md", "[the loop](../iscp/engine/x.py)", "the loop (`iscp/engine/x.py`)"),
        ("docs/api.md", "[`proto`](../proto/iscp)", "`proto`"),
        ("docs/jobs.md", "`a[0](b.py)`\n```python\nf[1](../x.md)\n```", "`a[0](b.py)`\n```python\nf[1](../x.md)\n```"),
        ("docs/cli.md", "| `table\\|wide` | a \\| b |", "| `table|wide` | a \\| b |"),
    ],
)
def test_links_lead_to_pages_of_the_site_and_to_nothing_else(path: str, text: str, shown: str) -> None:
    assert site_text(text, path) == shown


def test_files_of_the_project_that_are_no_pages_have_none() -> None:
    assert [site_page(path) for path in ("iscp/x.md", "docs/x.py", "deploy/helm/iscp/README.md")] == [None] * 3


def test_a_diagram_becomes_its_picture_with_its_text_below() -> None:
    pictures = {picture_name(diagrams(DIAGRAM)[0]): "<svg></svg>"}
    page = drawn(f"before\n\n{DIAGRAM}\nafter", pictures.get)
    assert "```" not in page
    assert "<figure" in page
    assert "<svg></svg>" in page
    assert "a --&gt; b: &lt;go&gt;" in page


def test_a_diagram_that_was_changed_since_it_was_drawn_has_no_picture() -> None:
    pictures = {picture_name(diagrams(DIAGRAM)[0]): "<svg></svg>"}
    with pytest.raises(MissingPictureError, match="scripts/draw-diagrams"):
        drawn(DIAGRAM.replace("go", "stop"), pictures.get)


def test_every_diagram_is_drawn_and_no_picture_is_left_over() -> None:
    wanted = {picture_name(source) for source in sources()}
    assert wanted
    assert {path.name for path in PICTURES.iterdir()} == wanted, "run scripts/draw-diagrams"


@pytest.mark.parametrize("picture", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.name)
def test_a_drawn_picture_loads_nothing_and_runs_nothing(picture: Path) -> None:
    assert not re.search(r"<script|<image|foreignObject|url\((?!#)|https?://(?!www\.w3\.org/)|\n.", picture.read_text())


def test_a_box_of_hundred_points_becomes_one_of_four() -> None:
    outline = '<path d="M-47.45 -17.5 C1 2" stroke="none" fill="#eee"></path><path d="M1 2" stroke="#999"></path>'
    box = compact(f'<g class="basic outer-path" data-look="classic">{outline}</g>')
    corner = 'x="-47.4" y="-17.5" width="94.8" height="35.0" rx="5"'
    assert box == f'<g class="basic outer-path"><rect {corner} fill="#eee" stroke="#999"></rect></g>'


def test_the_navigation_has_the_pages_of_folders_and_none_that_is_to_come() -> None:
    config = type("Config", (), {"nav": ["index.md", {"Change": [{"Decisions": "adr/"}]}, {"Reference": ["no.md"]}]})()
    config.nav.append("metrics.md")
    nav = on_config(config).nav
    assert nav is not None
    decisions = nav[1]["Change"][0]["Decisions"]
    assert decisions[:2] == ["adr/README.md", "adr/0001-starting-spark.md"]
    assert ("metrics.md" in nav) == (ROOT / "docs/metrics.md").exists()


def test_every_page_is_listed_by_its_reader() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)", (ROOT / "docs/README.md").read_text()))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md", "limits.md"} - listed == set()
