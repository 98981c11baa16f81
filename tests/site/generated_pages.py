"""The pages of the site that are made of the code when it is built, and lie nowhere."""

from __future__ import annotations

from functools import cache

from tests import limits
from tests.site import benchmark_page, command_page, error_page, python_page, setting_page, wire_page


@cache
def generated() -> dict[str, str]:
    """Return the text of each page, by its path on the site."""
    return {
        "limits.md": limits.document(limits.sources()),
        "reference/benchmarks.md": benchmark_page.page(),
        "reference/commands.md": command_page.page(),
        "reference/errors.md": error_page.page(),
        "reference/grpc.md": wire_page.grpc_page(),
        "reference/http.md": wire_page.http_page(),
        "reference/openapi.json": wire_page.openapi_text(),
        "reference/settings.md": setting_page.page(),
        **python_page.pages(),
    }
