"""A cluster of three real nodes under load, and a fault again and again: `python -m tests.soak`, or scripts/soak.

At the end all is compared with its source, and the folder that `--out` names has report.md, report.json, lag.svg and
resources.svg. The status is 0 if nothing was lost or doubled, and nothing grew beyond what is live.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.soak.playing import Size, play
from tests.soak.reporting import write_report


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of load and faults, after all is built")
    parser.add_argument("--tables", type=int, default=2_000)
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--pace", type=float, default=2.0, help="commits to sources a second")
    parser.add_argument("--fault-every-s", type=float, default=60.0)
    parser.add_argument("--sample-every-s", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0, help="of what is written, and which fault comes when")
    parser.add_argument("--out", type=Path, help="a folder for the report, and for the nodes' logs if it does not hold")
    options = parser.parse_args()
    size = Size(
        options.minutes, options.tables, options.jobs, options.pace, options.fault_every_s, options.sample_every_s
    )
    out = options.out or Path(tempfile.mkdtemp(prefix="iscp-soak-report-"))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="iscp-soak-") as root:
        findings = play(Path(root), size, options.seed, _say, out)
    write_report(findings, out)
    sys.stdout.write(f"{out / 'report.md'}\n")
    return 0 if findings.holds else 1


if __name__ == "__main__":
    sys.exit(main())
