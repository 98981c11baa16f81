"""Check the names of a job, its account and its table."""

from __future__ import annotations

from iscp.core.api.api_requests import JobName
from iscp.core.job.name_patterns import name_fault
from iscp.core.values.errors import InvalidRequest

JOB_NAME_LENGTH_MAX = 200
"""Characters of a job's name; a longer one is refused."""


def check_names(job: JobName) -> None:
    if not job.name.strip() or len(job.name) > JOB_NAME_LENGTH_MAX:
        raise InvalidRequest(
            f"must have 1 to {JOB_NAME_LENGTH_MAX} characters", field="job.name", remedy="Name the job"
        )
    if not job.account.strip():
        raise InvalidRequest("is empty", field="job.account", remedy="Leave it out for the default account")


def check_new_names(job: JobName) -> None:
    """Require new names that other commands, logs and terminals take as they are; an existing job with another name
    goes on.
    """
    for text, field in ((job.name, "job.name"), (job.account, "job.account")):
        if fault := name_fault(text):
            raise InvalidRequest(
                f"is {text!a}, {fault}",
                field=field,
                remedy="Use letters, digits and signs of ASCII but for * ? [, and begin with another sign than -",
            )
    refuse_unprintable(job.table, "table")


def refuse_unprintable(text: str, field: str) -> None:
    if not text.isprintable():
        raise InvalidRequest(
            f"is {text!r}, with characters that cannot be printed", field=field, remedy="Leave them out"
        )
