"""Templates of the page. Whatever is put into them is escaped, and a name that a template does not get is an error."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from iscp.page.boards import shown_values
from iscp.page.boards.job_facts import JobFacts

HERE = Path(__file__).parent

ASSETS = HERE / "assets"


def environment() -> Environment:
    """Return the templates, with the functions that they use."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("span", "age", "until", "moment", "count", "some", "size", "version", "short", "last_part", "share"):
        made.globals[name] = getattr(shown_values, name)
    made.globals["address"] = address
    made.globals["job_address"] = job_address
    return made


def address(path: str, parameters: dict[str, str] | None = None) -> str:
    """Return a path with its parameters."""
    return f"{path}?{urlencode(parameters, errors='replace')}" if parameters else path


def job_address(job: JobFacts, path: str = "/job") -> str:
    """Return the address of a job's board, or of something else of it."""
    return address(path, {"table": job.table_id, "name": job.name, "account": job.account})
