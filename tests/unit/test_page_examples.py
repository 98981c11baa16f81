"""Every block of code in the documents is run by a test, or says why it is not. Two small ones are run here."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from iscp.model.job.start_rule import NotBefore, StartNow, TriggerFacts
from tests.page_blocks import Block, blocks_of
from tests.page_run import PageRun

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

RUN_WHOLE: Mapping[str, str] = {
    "changefeed.md": "tests/integration/changefeed/test_examples.py",
    "consumers.md": "tests/unit/test_docs.py",  # its examples are the files that tests run
    "embedders.md": "tests/unit/index/embedding/test_embedder_registry.py",
    "gateway.md": "tests/integration/grpc/test_json_request.py",
    "howto.md": "tests/e2e/test_readme.py",
    "jobs.md": "tests/unit/test_page_examples.py",
    "python.md": "tests/e2e/test_readme.py",
    "tutorial.md": "tests/e2e/test_readme.py",
    "views.md": "tests/e2e/test_readme.py",
    "webhooks.md": "tests/unit/test_page_examples.py",
}
"""What runs all of a page's blocks but those that say that they are not run."""

RUN_BY_HEADING: Mapping[str, str] = {
    "README.md": "tests/e2e/test_readme.py",
    "cli.md": "tests/e2e/test_readme.py",
    "indexes.md": "tests/e2e/test_readme.py",
    "recovery.md": "tests/e2e/test_disasters.py",
    "security.md": "tests/e2e/test_readme.py",
}
"""What runs a page's blocks below the headings that it names."""

NOT_RUN = 28
"""Blocks that no test runs; one more has to be counted here."""

_SIGNATURES = re.compile(r"class \w*Client:\n    (async )?def ")


def code_blocks() -> list[Block]:
    """Return the blocks that readers run; what docs/python.md has of signatures is compared with the code instead."""
    blocks = [block for page in PAGES for block in blocks_of(page) if block.language in ("sh", "bash", "python")]
    return [block for block in blocks if not _SIGNATURES.match(block.body)]


def run_somewhere(block: Block) -> bool:
    """Return whether a test runs the block, by its page and the heading that it lies below."""
    if block.page in RUN_WHOLE:
        return block.page in (ROOT / RUN_WHOLE[block.page]).read_text()
    if block.page in RUN_BY_HEADING:
        return f'"{block.heading}"' in (ROOT / RUN_BY_HEADING[block.page]).read_text()
    return False


def test_every_block_of_code_is_run_or_says_why_it_is_not() -> None:
    blocks = code_blocks()
    assert len(blocks) > 70
    assert [(block.page, block.heading) for block in blocks if not block.why and not run_somewhere(block)] == []
    assert [(block.page, block.heading) for block in blocks if block.why and len(block.why) < 8] == []


def test_what_is_not_run_is_counted() -> None:
    assert len([block for block in code_blocks() if block.why]) == NOT_RUN


def test_a_block_that_nothing_runs_would_be_found() -> None:
    assert not run_somewhere(Block("operations.md", "Backing up", "sh", "iscp-admin status\n"))
    assert not run_somewhere(Block("indexes.md", "Languages", "sh", "iscp-admin status\n"))


def test_the_trigger_of_the_page_of_jobs_starts_in_its_hour(tmp_path: Path) -> None:
    run = PageRun({}, {}, tmp_path)
    run.run(blocks_of(ROOT / "docs/jobs.md"))
    nightly = run.session["Nightly"]()
    nightly.validate({"hour": 3})
    with pytest.raises(ValueError, match="hour"):
        nightly.validate({"hour": 24})

    def decide(now_s: float) -> Any:
        return nightly.decide(TriggerFacts("default", "/t", "n", 1, 0.0, 2, now_s, 0.0, 0.0, {"hour": 3}))

    day, hour = 86_400.0, 3_600.0
    assert decide(day + 3.5 * hour) == StartNow()
    assert decide(day + hour) == NotBefore(day + 3 * hour)
    assert decide(day + 5 * hour) == NotBefore(2 * day + 3 * hour)


def test_the_receiver_of_the_page_of_webhooks_knows_what_is_signed(tmp_path: Path) -> None:
    run = PageRun({}, {}, tmp_path)
    run.run(blocks_of(ROOT / "docs/webhooks.md"))
    signed, secret, body = run.session["signed"], b"secret", b'{"id": 1}'

    def header(at_s: int) -> str:
        return f"t={at_s},v1={hmac.new(secret, str(at_s).encode() + b'.' + body, hashlib.sha256).hexdigest()}"

    now_s = int(time.time())
    assert signed(secret, header(now_s), body)
    assert not signed(secret, header(now_s), body + b" ")
    assert not signed(b"another", header(now_s), body)
    assert not signed(secret, header(now_s - 400), body)
