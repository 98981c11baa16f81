"""What a runner asks of a source beside its rows: its change data feed, and when a version was committed."""

from __future__ import annotations

import logging

from iscp.ports.engine import Engine
from iscp.ports.source import ChangeSource, ChangesUnavailableError, SourceRange
from iscp.ports.system import Guard
from iscp.runtime.iteration.job_run import JobRun

log = logging.getLogger(__name__)


def enable_source_cdf(engine: Engine, source: ChangeSource, uri: str, span: SourceRange, guard: Guard) -> SourceRange:
    """Switch the source's change data feed on, and go on from there: what comes next can be read from it."""
    newest = source.newest(uri)  # a range in the past, of a time before the feed was on, stays as it is
    if newest.cdf_on:
        return span
    guard.check()
    with engine.session() as session:
        source.enable_feed(session, uri)
    log.info("feed.enabled", extra={"table": uri})
    return source.newest(uri)


def applied_at_s(source: ChangeSource, uri: str, work: JobRun) -> float:
    """When the last version that was applied was committed, as the log has it now."""
    try:
        return source.at(uri, work.position.watermark.version).to.at_s
    except ChangesUnavailableError:
        return 0.0
