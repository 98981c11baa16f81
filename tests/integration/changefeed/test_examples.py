"""The examples of the documentation do what it says, one after the other."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from iscp import changefeed
from tests.page_blocks import blocks_of
from tests.page_run import PageRun

PAGE = Path(__file__).parents[3] / "docs/changefeed.md"
TEXT = PAGE.read_text()


@pytest.mark.slow
def test_the_examples_run_as_they_are(tmp_path: Path, etcd: str, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    names: dict[str, object] = {}
    shown = []
    for block in blocks:
        exec(block.replace("/lake/", f"{tmp_path}/").replace("127.0.0.1:2379", etcd), names)
        shown.append(capsys.readouterr().out.splitlines())
    assert shown[0][0].count("'state': 'new'") == 2
    assert shown[1][0].split()[1] == "2"
    assert len(shown[3]) == 7, "six changes, and the one behind them"
    assert shown[3][-1] == "1"
    assert shown[5][0].endswith("['billing']")
    assert shown[7][-1] == "1"
    with changefeed.open(str(tmp_path / "orders_feed"), etcd=etcd) as feed:
        # The last example has purged what the stored cursor would read next.
        feed.cursors.store("billing", feed.first_cursor(), feed.cursors.get("billing"))
    run = PageRun({"/lake": str(tmp_path), "127.0.0.1:2379": etcd}, dict(os.environ), tmp_path)
    commands = [each for each in blocks_of(PAGE) if each.heading == "Commands" and each.language == "sh"]
    assert "billing" in run.run(commands)["Commands"]
