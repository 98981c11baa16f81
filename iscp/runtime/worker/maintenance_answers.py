"""Turn what handlers of refreshes and purges answer, which may be anything, into what can be believed."""

from __future__ import annotations

from itertools import islice
from typing import Any

from iscp.core.values.errors import ErrorCode, IscpError, PermanentError, TemporaryError
from iscp.core.values.untrusted_values import error_code, error_text, exact_name, named_error, shown

TABLES_READ_MAX = 1_000
"""Tables that one refresh may say to have read; with more its answer is an error."""


def to_error(error: BaseException) -> IscpError:
    """Return whatever a handler raised as an error of iscp's own that can be stored and shown."""
    if isinstance(error, IscpError):
        code = error_code(error)
        return (TemporaryError if code.temporary else PermanentError)(error_text(error), code=code)
    return TemporaryError(named_error(error), code=ErrorCode.CONSUMER_FAILED)


def parse_refresh(answer: Any) -> tuple[list[str], object]:
    """Return the tables that a refresh has read, and when it wants to come again. Raises PermanentError."""
    why = f"refresh() answers {shown(answer)}, and no pair of table ids and a time"
    try:
        table_ids, next_at_s = answer
        if isinstance(table_ids, str):
            raise TypeError("the ids are one text")
        found = [exact_name(each, "a table's id") for each in islice(table_ids, TABLES_READ_MAX + 1)]
        if len(found) > TABLES_READ_MAX:
            raise ValueError(f"there are more than {TABLES_READ_MAX} ids")
    except (ValueError, TypeError) as error:
        remedy = "Fix the consumer's refresh"
        raise PermanentError(f"{why}: {error_text(error)}", remedy=remedy, code=ErrorCode.CONSUMER_BROKEN) from error
    return found, next_at_s
