"""Runs that once failed: what was wrong then stays mended."""

from __future__ import annotations

REGRESSIONS: dict[int, str] = {}
"""Seed → what it found. A seed means what it meant as long as nothing is drawn otherwise; the mutants of
`tests/simulation/mutants.py` and the unit tests of the machines hold the same."""
