"""Draws what docs/ has of Mermaid: `python -m tests.site.drawing LIBRARY`, by Mermaid's own library in a browser.

The pictures are in git, so that neither a build of the site nor its readers need a browser's library for them.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.site.page_text import diagrams, picture_name

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs/diagrams"
DRAWING_S = 60

_PAGE = """<!doctype html><meta charset="utf-8"><body><script>LIBRARY</script><script>
(async () => {
  mermaid.initialize({startOnLoad: false, theme: "neutral", htmlLabels: false,
    flowchart: {htmlLabels: false}, deterministicIds: true,
    fontFamily: 'system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif'});
  const drawn = {};
  for (const [name, source] of Object.entries(SOURCES))
    drawn[name] = (await mermaid.render("d" + name.replace(".svg", ""), source)).svg;
  const bytes = new TextEncoder().encode(JSON.stringify(drawn));
  const text = btoa(Array.from(bytes, each => String.fromCharCode(each)).join(""));
  document.body.innerHTML = "<pre id=drawn>" + text + "</pre>";
})().catch(error => document.body.innerHTML = "<pre id=fault>" + error + "</pre>");
</script>"""


def sources() -> Iterator[str]:
    """Yield the texts of all diagrams of the documents."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        yield from diagrams(path.read_text())


def draw(library: Path, texts: dict[str, str]) -> dict[str, str]:
    """Return the picture of each text, by its name. Raises RuntimeError with what the browser printed."""
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "page.html"
        program = library.read_text().replace("</script", "<\\/script")
        page.write_text(_PAGE.replace("SOURCES", json.dumps(texts)).replace("LIBRARY", program))
        browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={scratch}/profile"]
        run = subprocess.run(
            [*browser, "--virtual-time-budget=20000", "--dump-dom", page.as_uri()],
            capture_output=True,
            text=True,
            timeout=DRAWING_S,
            check=False,
        )
    found = re.search(r'<pre id="drawn">([^<]*)</pre>', run.stdout)
    if found is None:
        raise RuntimeError(f"the browser has drawn nothing: {run.stdout[-400:]} {run.stderr[-400:]}")
    pictures: dict[str, str] = json.loads(base64.b64decode(found[1]))
    return pictures


_OUTLINE = re.compile(
    r'(<g class="[^"]*outer-path[^"]*"[^>]*>)<path d="M(-[\d.]+) (-[\d.]+) [^"]*"[^>]* fill="([^"]+)"[^>]*></path>'
    r'<path [^>]*stroke="([^"]+)"[^>]*></path>'
)
"""A box as Mermaid draws it: two paths of some hundred points, from its upper left corner; its centre is 0."""


def compact(picture: str) -> str:
    """Return a picture without what nobody sees: data for scripts, paths for boxes, more than one decimal."""
    picture = re.sub(r' data-[\w-]+="[^"]*"', "", picture)
    picture = re.sub(r"(\d+\.\d)\d+", r"\1", picture)
    return _OUTLINE.sub(_box, picture)


def _box(found: re.Match[str]) -> str:
    group, x, y, fill, stroke = found.groups()
    width, height = -2 * float(x), -2 * float(y)
    corner = f'x="{x}" y="{y}" width="{width:.1f}" height="{height:.1f}" rx="5"'
    return f'{group}<rect {corner} fill="{fill}" stroke="{stroke}"></rect>'


def main(library: str) -> None:
    """Draw what is missing, and remove what is left over."""
    texts = {picture_name(source): source for source in sources()}
    PICTURES.mkdir(exist_ok=True)
    for path in PICTURES.glob("*.svg"):
        if path.name not in texts:
            path.unlink()
    missing = {name: source for name, source in texts.items() if not (PICTURES / name).exists()}
    for name, picture in (draw(Path(library), missing) if missing else {}).items():
        (PICTURES / name).write_text(compact(picture) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
