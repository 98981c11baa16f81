"""Reads SQL files with statements of views and of indexes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iscp.cli.view.index_statements import INDEX_STATEMENT, IndexStatement, is_index, parse_index
from iscp.cli.view.sql_tokens import SqlSource
from iscp.cli.view.statement_reader import statement_tokens
from iscp.cli.view.view_options import read_text
from iscp.cli.view.view_statements import STATEMENT, ViewStatement, parse_view
from iscp.core.values.argument_checks import Refusals
from iscp.core.values.errors import InvalidRequest

FILE_CHARS_MAX = 10_000_000
"""Characters of a file of views; a longer one is refused."""

SQL_SUFFIX = ".sql"

Statement = ViewStatement | IndexStatement


def read_statements(paths: Sequence[str]) -> list[Statement]:
    """Return the statements of files; `-` is stdin.

    Raises InvalidRequest for the first that cannot be taken over, with every other one beside it, and where there is
    none.
    """
    found, refusals = list[Statement](), Refusals()
    for path in paths:
        name = "stdin" if path == "-" else path
        with refusals.collect():
            for statement in parse_sql(SqlSource(read_text(path, name, FILE_CHARS_MAX), name)):
                if isinstance(statement, InvalidRequest):
                    refusals.add(statement)
                else:
                    found.append(statement)
    refusals.raise_all()
    if not found:
        raise InvalidRequest(
            "holds no view",
            field="stdin" if paths[0] == "-" else paths[0] or "--file",
            remedy=f"Write {STATEMENT}, or {INDEX_STATEMENT}",
        )
    return found


def parse_sql(source: SqlSource) -> Iterator[Statement | InvalidRequest]:
    """Yield each statement, or why it cannot be taken over. Raises InvalidRequest for a text that has no end."""
    for tokens, end in statement_tokens(source):
        yield parse_index(source, tokens, end) if is_index(tokens) else parse_view(source, tokens, end)
