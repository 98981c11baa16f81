"""Tables, the job log and staged ranges on a real store with the S3 API: the tests of the fake one, once more."""

from __future__ import annotations

from tests.integration.test_s3 import (
    test_a_bucket_that_is_not_there_is_no_missing_table,
    test_a_repair_is_found_by_the_beginning_of_its_commit,
    test_a_table_above_or_below_a_place_is_found,
    test_commits_are_read_and_listed,
    test_delta_rs_commits_a_version_once,
    test_ranges_of_a_build_are_counted_once,
    test_removing_a_directory_spares_what_lies_beside_it,
    test_rows_of_a_target_are_marked_as_gone,
    test_the_job_log_lies_there_too,
    test_the_probe_follows_a_table_and_sees_that_it_was_recreated,
)

__all__ = [
    "test_a_bucket_that_is_not_there_is_no_missing_table",
    "test_a_repair_is_found_by_the_beginning_of_its_commit",
    "test_a_table_above_or_below_a_place_is_found",
    "test_commits_are_read_and_listed",
    "test_delta_rs_commits_a_version_once",
    "test_ranges_of_a_build_are_counted_once",
    "test_removing_a_directory_spares_what_lies_beside_it",
    "test_rows_of_a_target_are_marked_as_gone",
    "test_the_job_log_lies_there_too",
    "test_the_probe_follows_a_table_and_sees_that_it_was_recreated",
]
