"""Shell-style patterns over names of tables and jobs: `*` any characters, also / and ., `?` one, `[ab]` one of these.

They are matched as a whole and with regard to case.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable

from iscp.core.job.job_row import JobRow


def is_pattern(text: str) -> bool:
    return any(sign in text for sign in "*?[")


def name_fault(text: str) -> str:
    """Return why nothing may be named so, as the rest of a sentence, or an empty text if it may.

    Only listed characters are allowed: of the letters beyond ASCII many look like others or like nothing, and so do
    their marks; which of them do changes with Unicode and with fonts.
    """
    if not (text.isascii() and text.isprintable()):
        return "with characters other than letters and digits of ASCII, its signs and blanks"
    if not text.strip() or is_pattern(text) or text.startswith("-") or text != text.strip():
        return "which commands would take for a pattern or an option"
    return ""


def matcher(table_pattern: str, name_pattern: str) -> Callable[[JobRow], bool]:
    """Return a function that says whether a job's table, as it was registered or as it lies, and its name match.

    Empty patterns match all.
    """
    table, name = (re.compile(fnmatch.translate(each or "*")).match for each in (table_pattern, name_pattern))

    def matches(row: JobRow) -> bool:
        on_table = not table_pattern or bool(table(row.table_name) or table(row.table_uri))
        return on_table and (not name_pattern or bool(name(row.key.job_name)))

    return matches
