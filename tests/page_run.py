"""The blocks of a page as a reader runs them: lines of the shell one by one, Python in one session."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.page_blocks import Block

COMMAND_WAIT_S = 180.0


@dataclass
class PageRun:
    """Who runs a page in a folder. `places` stand in for its paths and endpoints; the longest are replaced first."""

    places: Mapping[str, str]
    environ: dict[str, str]
    folder: Path
    session: dict[str, Any] = field(default_factory=dict)

    def run(self, blocks: Iterable[Block]) -> dict[str, str]:
        """Run what can be run, and return what each heading's blocks have printed. Each command has to end well."""
        printed: dict[str, str] = {}
        for block in blocks:
            if not block.why and block.language in ("sh", "python"):
                printed[block.heading] = printed.get(block.heading, "") + self._run_block(block)
        return printed

    def here(self, text: str) -> str:
        """Return a text of the page with the places of this run."""
        names = sorted(self.places, key=len, reverse=True)
        return re.sub("|".join(map(re.escape, names)) or "(?!)", lambda found: self.places[found[0]], text)

    def _run_block(self, block: Block) -> str:
        body = self.here(block.body)
        if block.language == "sh":
            return "".join(self._run_line(line) for line in body.splitlines())
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(body, self.session)
        return out.getvalue()

    def _run_line(self, line: str) -> str:
        """Run a line of the shell. Requests of curl are sent without it, as not every machine has it."""
        words = shlex.split(line, comments=True)
        if words[0] == "export":
            self.environ |= dict(word.split("=", 1) for word in words[1:])
            return ""
        return _sent(words) if words[0] == "curl" else self._run_command(line)

    def _run_command(self, command: str) -> str:
        """Run a command until its end; what follows a feed without end is read until its first line."""
        environ = {**self.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{self.environ['PATH']}"}
        shell = ["bash", "-c", f"exec {command}"]
        with subprocess.Popen(shell, env=environ, cwd=self.folder, stdout=subprocess.PIPE, text=True) as child:
            if "--follow" in command:
                assert child.stdout is not None
                first = child.stdout.readline()
                assert first.strip(), command
                child.terminate()
                return first
            out = child.communicate(timeout=COMMAND_WAIT_S)[0]
            assert child.returncode == 0, f"{command}\n{out}"
            assert out.strip() or " > " in command or "--dead-letters" in command, command
            return out


def _sent(words: list[str]) -> str:
    """Send a request as `curl -s [-H HEADER] [-d BODY] URL` does, and return the answer's content."""
    url, options = words[-1], dict(zip(words[2:-1:2], words[3:-1:2], strict=True))
    assert words[1] == "-s", words
    assert options.keys() <= {"-H", "-d"}, words
    headers = dict([options["-H"].split(": ", 1)]) if "-H" in options else {}
    request = urllib.request.Request(url, options["-d"].encode() if "-d" in options else None, headers)
    with urllib.request.urlopen(request, timeout=COMMAND_WAIT_S) as answer:
        content: bytes = answer.read()
    return content.decode()
