"""The terms that all ranges of a build agree on, besides the version of their own table.

They are written once, where the build's ranges are staged, before any of them is: whoever builds a range, at whichever
node and however late, reads the same, and a build with other terms is another build.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from iscp.core.values.exact_watermarks import parse_sources, sources_document
from iscp.core.values.untrusted_values import exact_float, exact_name, shown
from iscp.core.values.watermark import SourceMarks

_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class BuildTerms:
    """The terms of a build. `sources` are the versions of all tables that ranges read, their own among them. `as_of_s`
    is the instant that they are computed for, in Unix seconds (0: they do not depend on the time).

    `way` says how rows are computed, as the consumer calls it. With `passing` what is staged is not the target's own,
    and goes with the build.
    """

    sources: SourceMarks = field(default_factory=dict)
    as_of_s: float = 0.0
    way: str = ""
    passing: bool = False

    @property
    def pin(self) -> str:
        """Return what distinguishes builds of one version with other terms; empty if there are none.

        The instant does not count: a build that begins again reads something else, or it would fail again.
        """
        if not self.sources:
            return ""
        what = json.dumps([sources_document(self.sources), self.way], sort_keys=True)
        return hashlib.blake2b(what.encode(), digest_size=_DIGEST_BYTES).hexdigest()

    def document(self) -> dict[str, Any]:
        """Return the terms as JSON for `parse_terms`."""
        found: dict[str, Any] = {"sources": sources_document(self.sources)} if self.sources else {}
        return found | {name: value for name in ("as_of_s", "way", "passing") if (value := getattr(self, name))}


NO_TERMS = BuildTerms()


def parse_terms(document: object) -> BuildTerms:
    """Read `BuildTerms.document`, which may have other fields besides; raise ValueError if it is no such document."""
    if not isinstance(document, Mapping):
        raise ValueError(f"the terms are {shown(document)}, which does not map names to values")
    return BuildTerms(
        parse_sources(document.get("sources", {})),
        exact_float(document.get("as_of_s", 0.0), "as_of_s"),
        exact_name(document.get("way", ""), "way"),
        document.get("passing", False) is True,
    )
