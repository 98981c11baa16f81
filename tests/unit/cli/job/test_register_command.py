"""`iscp-admin job register`: the options of a consumer, one by one and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from iscp.model.api.api_requests import JobFilter
from iscp.model.spec.spec import flatten
from iscp.model.values.errors import InvalidRequest
from tests.fakes.admin import FakeAdmin

Run = Callable[..., Result]
JOB = ("job", "register", "--table", "/t", "--name", "i", "--target", "/i", "--key", "id", "--consumer")


def options_of(service: FakeAdmin) -> Any:
    (job,) = service.list_jobs(JobFilter())
    return flatten(job.spec_json).get("options")


def test_options_one_by_one_are_those_of_the_consumer(run: Run, service: FakeAdmin) -> None:
    named = ("columns=title^2,body", "language=english", "recall=0.95", "stem=true", "max_token_length=30", "text=a=b")
    given = [word for each in named for word in ("--option", each)]
    done = run(*JOB, "search", *given, "--options", '{"stored": ["year"]}')
    assert done.exit_code == 0, done.output
    assert options_of(service) == {
        "stored": ["year"],
        "columns": "title^2,body",
        "language": "english",
        "recall": 0.95,
        "stem": True,
        "max_token_length": 30,
        "text": "a=b",
    }


@pytest.mark.parametrize("value", ["", "1e5", "007", "NaN", "True", "[1]", "12345678901234567890", "-", "1."])
def test_what_is_no_plain_number_is_a_text(run: Run, service: FakeAdmin, value: str) -> None:
    assert run(*JOB, "fulltext", "--option", f"x={value}").exit_code == 0
    assert options_of(service) == {"x": value}


def test_a_job_without_options_has_none(run: Run, service: FakeAdmin) -> None:
    assert run(*JOB, "replica").exit_code == 0
    assert options_of(service) is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("--option", "language"), "is not NAME=VALUE"),
        (("--option", "=english"), "is not NAME=VALUE"),
        (("--option", "a=1", "--option", "a=1"), "'a' is given twice"),
        (("--option", "a=1", "--options", '{"a": 2}'), "'a' is given twice"),
        (("--option", "shards=2", "--shards", "2"), "'shards' is given twice"),
    ],
)
def test_an_option_that_is_none_or_given_twice_is_wrong_usage(
    run: Run, service: FakeAdmin, given: tuple[str, ...], why: str
) -> None:
    done = run(*JOB, "changefeed", *given)
    assert done.exit_code == 2
    assert why in done.stderr
    assert service.list_jobs(JobFilter()) == []


def test_a_refusal_names_the_option_as_it_was_given(run: Run, service: FakeAdmin) -> None:
    def refuse(verb: str) -> None:
        raise InvalidRequest("is not known", field="spec.iteration.consumer.options.tokenizer", remedy="Use icu")

    service.before = refuse
    for given, named in ((("--option", "tokenizer=x"), "--option tokenizer"), (("--options", "{}"), "--options")):
        done = run(*JOB, "fulltext", *given)
        assert f"  field: {named}" in done.stderr.splitlines()
