"""Compares both engines by all cases, and finds witnesses of guards: python -m tests.equality [--write] [WORD …]."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from iscp.spark.session import SparkRuntime, SparkSettings
from tests import quick_spark
from tests.equality.cases import CASES
from tests.equality.comparison import WITNESSES, guards, tables, witnesses


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.equality", description=__doc__)
    parser.add_argument(
        "words", nargs="*", help="only cases that have one of these in their names; other witnesses stay"
    )
    parser.add_argument("--write", action="store_true", help="keep the witnesses that are found")
    options = parser.parse_args()
    cases = [each for each in CASES if not options.words or any(word in str(each) for word in options.words)]
    faults = handed = 0
    found = {each.guard: each for each in witnesses() if each.guard in guards()} if options.words else {}
    shown = {each.entry for each in cases}
    missing = {key: value for key, value in guards().items() if key not in found and key[0] in shown}
    with tempfile.TemporaryDirectory() as work_dir:
        runtime = SparkRuntime.start(SparkSettings(work_dir=Path(work_dir), conf=quick_spark.QUICKER_CONF))
        try:
            for table in tables(runtime.new_session(), cases):
                for verdict in table.judge():
                    handed += verdict.handed
                    for fault in verdict.faults:
                        faults += 1
                        sys.stdout.write(f"{verdict.case}: {fault}\n")
                        sys.stdout.flush()
                for witness in [*table.witnesses(missing)]:
                    found[witness.guard] = witness
                    del missing[witness.guard]
        finally:
            runtime.stop()
    for guard in missing:
        sys.stdout.write(f"no row is wrong without the guard of {guard[0]}: {guard[1]}\n")
    if options.write:
        WITNESSES.write_text(
            json.dumps([each.document() for each in found.values()], ensure_ascii=False, indent=1) + "\n"
        )
    summary = f"{len(cases)} cases, {faults} faults, {handed} rows handed over, {len(found)} guards with a witness"
    sys.stdout.write(f"{summary}\n")
    return 1 if faults or missing else 0


if __name__ == "__main__":
    sys.exit(main())
