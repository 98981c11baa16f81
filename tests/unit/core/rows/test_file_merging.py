"""Which files are rewritten: few stay, and a row is rewritten a few times only, however many commits come."""

from __future__ import annotations

import random

from iscp.core.rows.file_merging import FILES_OF_A_CLASS_MAX, MERGED_ROWS_MAX, FileRows, files_to_merge


class Table:
    """The files that commits of few rows leave."""

    def __init__(self) -> None:
        self.files: dict[str, FileRows] = {}
        self.number = 0
        self.rewritten = 0

    def commit(self, coming: int, going: dict[str, int] | None = None) -> None:
        for name, rows in (going or {}).items():
            held = self.files[name]
            self.files[name] = FileRows(held.written, held.left - rows)
        self.files = {name: rows for name, rows in self.files.items() if rows.left}
        merged = files_to_merge(self.files, coming)
        rewritten = sum(self.files.pop(name).left for name in merged)
        self.rewritten += rewritten
        if coming + rewritten:
            self.number += 1
            self.files[str(self.number)] = FileRows(coming + rewritten, coming + rewritten)


def test_a_table_of_ten_thousand_commits_has_few_files_and_rows_are_rewritten_once_a_class() -> None:
    table, draw, written = Table(), random.Random(1), 0
    for _ in range(10_000):
        coming = draw.randint(1, 40)
        written += coming
        table.commit(coming)
        assert len(table.files) <= 6 * (FILES_OF_A_CLASS_MAX + 1)
    assert sum(rows.left for rows in table.files.values()) == written
    assert table.rewritten <= 5 * written


def test_a_file_most_of_whose_rows_are_gone_is_rewritten() -> None:
    files = {"most": FileRows(100, 40), "half": FileRows(100, 50), "none": FileRows(100, 100), "all": FileRows(9, 0)}
    assert files_to_merge(files, 0) == {"most"}


def test_large_files_are_left_as_they_are() -> None:
    large = MERGED_ROWS_MAX + 1
    assert files_to_merge({"most gone": FileRows(3 * large, large)}, 10) == frozenset()
    many = {str(number): FileRows(large, large) for number in range(2 * FILES_OF_A_CLASS_MAX)}
    assert files_to_merge(many, 1) == frozenset()


def test_no_commit_writes_more_than_the_limit() -> None:
    files = {str(number): FileRows(300_000, 140_000) for number in range(20)}
    merged = files_to_merge(files, 0)
    assert merged
    assert sum(files[name].left for name in merged) <= MERGED_ROWS_MAX


def test_rows_that_come_count_as_a_file_of_their_class() -> None:
    files = {str(number): FileRows(20, 20) for number in range(FILES_OF_A_CLASS_MAX)}
    assert files_to_merge(files, 20) == {*files}
    assert files_to_merge(files, 1) == frozenset()
