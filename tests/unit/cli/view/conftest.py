"""What `iscp-admin view` has registered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iscp.model.api.api_requests import JobFilter
from iscp.model.spec.spec_parsing import ViewFields, view_of
from tests.fakes.admin import FakeAdmin


@pytest.fixture
def kept(service: FakeAdmin) -> Callable[[], list[tuple[str, str, ViewFields]]]:
    """The table, the name and the fields of all views that are registered."""

    def kept() -> list[tuple[str, str, ViewFields]]:
        found = ((job.table, job.name, view_of(job.spec_json)) for job in service.list_jobs(JobFilter()))
        return [(table, name, view) for table, name, view in found if view is not None]

    return kept
