"""The class in docs/embedders.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import iscp.index.embedding as exported
from iscp.index.embedding.embedder_registry import CheckedEmbedder
from iscp.model.settings.embedder_config import EmbedderConfig

ROOT = Path(__file__).parents[4]
LINES_MAX = 20


def test_the_example_is_an_embedder_and_short() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/embedders.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= LINES_MAX
    names: dict[str, type] = {}
    exec(compile(code, "docs/embedders.md", "exec"), names)
    embedder = CheckedEmbedder("word_counts", names["WordCounts"](EmbedderConfig(kind="word_counts")))
    one, same, other = embedder.embed(["a red fox", "Fox red A", "of interest rates"])
    assert (embedder.dimension, embedder.batch) == (512, 256)
    assert (one == same).all()
    assert float(one @ one) > float(one @ other)


def test_what_embedders_need_can_be_imported_from_the_room() -> None:
    assert all(getattr(exported, name).__name__ == name for name in exported.__all__)
