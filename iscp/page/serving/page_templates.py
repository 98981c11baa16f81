"""Templates of the page. A name that a template does not get is an error.

Whatever is put into them is escaped for HTML, and has the escapes that it would have on a terminal. The value of a
field of a form, which comes back as it is, has references to characters instead (`exact`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from iscp.core.values.untrusted_values import escaped, is_shown
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
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in (
        "span",
        "lag",
        "age",
        "until",
        "moment",
        "count",
        "some",
        "size",
        "version",
        "short",
        "last_part",
        "share",
    ):
        made.globals[name] = getattr(shown_values, name)
    made.filters["exact"] = exact
    made.globals["address"] = address
    made.globals["job_address"] = job_address
    return made


def _shown(value: Any) -> Any:
    return escaped(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def exact(value: str) -> Markup:
    """Return the value of a field, which a browser reads as it was, though no character in it steers what is shown."""
    return Markup("".join(each if is_shown(each) else f"&#{ord(each)};" for each in str(escape(value))))


def address(path: str, parameters: dict[str, str] | None = None) -> str:
    """Return a path with its parameters."""
    return f"{path}?{urlencode(parameters, errors='replace')}" if parameters else path


def job_address(job: JobFacts, path: str = "/job") -> str:
    """Return the address of a job's board, or of something else of it."""
    return address(path, {"table": job.table_id, "name": job.name, "account": job.account})
