"""Proves what the process of a run says besides results, and that it leaves logging as it was."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest

from iscp.cli.run.run_output import process_of_a_run
from iscp.model.values.errors import ConfigurationError
from iscp.spark.java import find_java


def test_a_java_that_is_passed_over_is_named_and_other_warnings_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    before = (list(logging.getLogger().handlers), logging.getLogger().level)
    with process_of_a_run():
        with suppress(ConfigurationError):  # where there is no other
            find_java({"JAVA_HOME": "/nonexistent", "PATH": ""})
        logging.getLogger("iscp.engine").warning("iteration.slow")
        logging.getLogger("iscp.engine").error("iteration.broken")
    first, second = capsys.readouterr().err.splitlines()
    assert "java.unfit" in first
    assert "/nonexistent/bin/java does not run" in first
    assert "iteration.broken" in second
    assert (list(logging.getLogger().handlers), logging.getLogger().level) == before
