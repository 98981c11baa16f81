"""The id of a registration (`job_id`): when it began, of which spec its target is, and who keeps the target.

The module also has the other ways to name jobs: patterns over names of tables and jobs, and the fields by which lines
of a node's log name them.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from iscp.model.build.build_task import BuildPlan
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec, schema_of_spec
from iscp.model.values.errors import Superseded

# --- ids of registrations ---------------------------------------------------------------------------------------------
# The position of every kind of sink has the job_id of its last commit. So each target says, without another field, what
# its rows are made by and who keeps them. `RegistrationId` has the forms of ids.
#
# TIME is 12 hexadecimal digits, and of the same length in all forms. Hence ids are compared as texts: of two ids of
# different times the later one is greater, whatever follows, and older forms take part. MARK is `spec_mark`, from which
# it follows what the rows of a target are.
#
# Two ids of one time: within a cluster there are none, as `next_job_id` always counts on. A cluster and a run, or two
# runs, may draw the same time for one target. If their ids differ, they are ordered as any others, in the same way for
# everybody: only the greater one may claim. If they are equal, then so are their marks, and hence the table and the
# spec: both write the same rows of the same versions. Each of their commits is the one after the seq that it was made
# on, or fails, and the attempt in it says whose it is. So the two are like two nodes that run one job, of which one has
# lost its lease (docs/exactly-once.md).

MARK_DIGITS = 16
"""Hexadecimal digits of a mark: that any two of a million specs share one has a chance of one in 36 million."""

_FORM = re.compile(rf"([0-9a-f]{{12}})(?:-([0-9a-f]{{{MARK_DIGITS}}})(-run)?(-full)?)?(?:\.[0-9a-f]+)?")


def spec_mark(table_uri: str, consumer: ConsumerSpec) -> str:
    """Return the mark of a job: two jobs have the same one if their tables and consumers are the same.

    `table_uri` and `consumer` are as the job log stores them, with normalized places. Fields that are not set are left
    out, as in the job log, so that a field of a later release changes no mark.
    """
    known = (each for each in schema_of_spec() if each.holder is ConsumerSpec)
    document = {each.attribute: value for each in known if (value := getattr(consumer, each.attribute)) != each.unset}
    text = json.dumps({"table": table_uri, "consumer": document}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:MARK_DIGITS]


class RegistrationId(NamedTuple):
    """The parts of a job_id. `time` is empty if it has none of the forms, `mark` if it is of an older one.

    `run`: a run keeps the target, and no cluster. `full`: the target is to be built from nothing.

    The forms of a job_id are:

    - `TIME`: a registration of a release before marks;
    - `TIME-MARK`: one in a cluster; `TIME-MARK-run`: one of a run, which needs no cluster;
    - either of the latter with `-full` at its end: one that was requested so that the target is built from nothing;
    - any of these with `.NUMBER`: the row of a range (see `ranged_job_id`);
    - any of these with `~deleted`: that registration deletes the target. The id is later than its own, so that an
      iteration of it which comes late does not build the target again, and any new registration's is later still.
    """

    time: str = ""
    mark: str = ""
    run: bool = False
    full: bool = False


def parse_job_id(job_id: str) -> RegistrationId:
    """Return the parts of an id; a text that is none, as others may write it into a target, has empty parts."""
    found = _FORM.fullmatch(job_id)
    if found is None:
        return RegistrationId()
    time, mark, run, full = found.groups()
    return RegistrationId(time, mark or "", run is not None, full is not None)


def marked_job_id(time_id: str, mark: str, *, run: bool = False, full: bool = False) -> str:
    """Return the id of a registration that began at `time_id` (the result of `next_job_id`)."""
    return f"{time_id}-{mark}{'-run' if run else ''}{'-full' if full else ''}"


def deletion_id(job_id: str) -> str:
    """Return the id of the commit by which a registration begins to delete its target."""
    return f"{job_id}~deleted"


def id_of_successor(time_id: str, registration: str) -> str:
    """Return the id that begins at `time_id` and otherwise says what that of `registration` says."""
    found = parse_job_id(registration)
    return marked_job_id(time_id, found.mark, run=found.run, full=found.full) if found.mark else time_id


def goes_on_from(job_id: str, former: str) -> bool:
    """Return whether the registration `job_id` takes the target of `former` over with its rows, and builds nothing.

    This is so if one of them is a cluster's and the other a run's, both are of the same table and spec, and nobody
    requested that the target be built from nothing. Within a cluster a later registration always builds, as within
    runs: there the user who wants the same job goes on with it.
    """
    mine, theirs = parse_job_id(job_id), parse_job_id(former)
    fits = bool(mine.mark) and mine.mark == theirs.mark and mine.run != theirs.run
    return fits and not mine.full and former < job_id


def superseded(place: str, later_id: str) -> Superseded:
    """Return the error of a job whose `place` (what it writes) belongs to the registration `later_id`."""
    what = f"{place} belongs to the later registration {later_id}"
    if not parse_job_id(later_id).run:
        return Superseded(what)
    remedy = "Unregister the job; if it is registered again, it goes on where the run has come to"
    return Superseded(f"{what}: a run without a cluster has taken it over", remedy=remedy)


# --- patterns over names of tables and jobs ---------------------------------------------------------------------------
# Patterns are those of shells: `*` any characters, also / and ., `?` one, `[ab]` one of these. They are matched as a
# whole and with regard to case.


def is_pattern(text: str) -> bool:
    return any(sign in text for sign in "*?[")


def name_fault(text: str) -> str:
    """Return why nothing may be named so, as the rest of a sentence, or an empty text if it may.

    Only listed characters are allowed: of the letters beyond ASCII many look like others or like nothing, and so do
    their marks; which of them do changes with Unicode and with fonts.
    """
    if not (text.isascii() and text.isprintable()):
        return "with characters other than letters and digits of ASCII, its signs and blanks"
    if not text.strip() or is_pattern(text) or text.startswith("-") or text != text.strip():
        return "which commands would take for a pattern or an option"
    return ""


def matcher(table_pattern: str, name_pattern: str) -> Callable[[JobRow], bool]:
    """Return a function that says whether a job's table, as it was registered or as it lies, and its name match.

    Empty patterns match all.
    """
    table, name = (re.compile(fnmatch.translate(each or "*")).match for each in (table_pattern, name_pattern))

    def matches(row: JobRow) -> bool:
        on_table = not table_pattern or bool(table(row.table_name) or table(row.table_uri))
        return on_table and (not name_pattern or bool(name(row.key.job_name)))

    return matches


# --- jobs in lines of logs --------------------------------------------------------------------------------------------
# The fields by which lines of a node's log name jobs, so that `job logs` shows each line to whom it concerns;
# `JobOfLines` (iscp.model.api.api_requests) reads them.

LOGGED_JOBS_MAX = 50
"""Jobs that a line about several of them names; a line about more names none, and is shown for each job of the
table.
"""


def logged_job(row: JobRow, table: str = "") -> dict[str, object]:
    """Return the fields of a line about one job; `table` is what its table is called, unless as in the row."""
    key = row.key
    return {"table": table or row.table_name, "account": key.account, "job": key.job_name, "job_id": row.job_id}


def logged_plan(plan: BuildPlan) -> dict[str, object]:
    """Return the fields of a line about the build of one job."""
    return {"table": plan.table_uri, "account": plan.account, "job": plan.job_name, "job_id": plan.job_id}


def logged_jobs(rows: Sequence[JobRow]) -> dict[str, object]:
    """Return what a line about several jobs of a table has beside its table and account."""
    return {"job_ids": [row.job_id for row in rows]} if len(rows) <= LOGGED_JOBS_MAX else {}
