"""Makes a probe of the schedule: a table's source, the targets of its jobs, and what else they read."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from iscp.coordination.further_tables import FurtherAnswer, FurtherQuery
from iscp.coordination.schedule.schedule_events import Probe, ProbeAnswered, TargetAnswer
from iscp.core.job.logged_jobs import logged_job
from iscp.core.job.target_state import TargetQuery
from iscp.core.values.errors import IscpError
from iscp.core.values.untrusted_values import named_error
from iscp.ports.catalog import CommitProbe, TargetProbe
from iscp.runtime.worker.source_probe import probe_source

log = logging.getLogger(__name__)


class Spot:
    """The spot of a probe: `at` is the table that is touched now, by its URI."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = ""


class Prober:
    """Safe for threads."""

    def __init__(self, probe: CommitProbe, targets: TargetProbe) -> None:
        self._probe = probe
        self._targets = targets
        self.place = probe.place

    def far_place(self, probe: Probe) -> str:
        """Return where the first of its tables behind a network lies; empty if none is."""
        # Loops, as generators would cost as much as the rest of this for each idle table.
        remote = self._probe.remote
        if remote(probe.uri):
            return self.place(probe.uri)
        for target in probe.targets:
            if remote(uri := target.seen.uri if target.seen else self._targets.location(target.row, None)):
                return self.place(uri)
        for further in probe.further:
            if remote(further.uri):
                return self.place(further.uri)
        return ""

    def places(self, probe: Probe) -> Sequence[str]:
        """Return the places of all its tables, each once."""
        targets = [self._targets.location(each.row, each.seen) for each in probe.targets]
        uris = [probe.uri, *filter(None, targets), *(each.uri for each in probe.further)]
        return [*dict.fromkeys(map(self.place, uris))]

    def answer(self, probe: Probe, spot: Spot) -> ProbeAnswered:
        try:
            spot.at = probe.uri
            state = probe_source(self._probe, probe.uri, probe.seen)
            targets = self._probe_targets(probe.targets, spot) if probe.targets else ()
            further = self._probe_further(probe.further, spot) if probe.further else ()
            return ProbeAnswered(probe.shard, probe.uri, state, None, targets, further)
        except IscpError as error:
            return ProbeAnswered(probe.shard, probe.uri, None, error)
        except BaseException as error:  # an exit that foreign code calls ends no thread that others need
            log.exception("probe.broke", extra={"table": probe.uri})
            return ProbeAnswered(probe.shard, probe.uri, None, IscpError(named_error(error)))

    def _probe_further(self, queries: Sequence[FurtherQuery], spot: Spot) -> tuple[FurtherAnswer, ...]:
        """Return the answers of the further tables that have moved, or cannot be reached."""
        answers = []
        for query in queries:
            try:
                spot.at = query.uri
                seen, prober = query.seen, self._probe
                state = prober.first_probe(query.uri) if seen is None else prober.probe(query.uri, seen)
                if state is not seen:
                    answers.append(FurtherAnswer(query.uri, state))
            except Exception as error:  # noqa: BLE001  (one table's fault is that of its jobs)
                log.warning("further_table.unreachable", extra={"table": query.uri, "error": str(error)})
                answers.append(FurtherAnswer(query.uri, None))
        return tuple(answers)

    def _probe_targets(self, queries: Sequence[TargetQuery], spot: Spot) -> tuple[TargetAnswer, ...]:
        """Return the answers of the targets that have moved, or are in doubt."""
        answers = []
        for query in queries:
            try:
                spot.at = query.seen.uri if query.seen else self._targets.location(query.row, None)
                seen = self._targets.probe(query.row, query.seen)
                if seen is not query.seen:
                    answers.append(TargetAnswer(query.row.job_id, seen))
            except Exception as error:  # noqa: BLE001  (one target's fault is its own)
                why = error if isinstance(error, IscpError) else IscpError(f"{type(error).__name__}: {error}")
                log.warning("target.doubted", extra=logged_job(query.row) | {"error": str(why)})
                answers.append(TargetAnswer(query.row.job_id, None, why))
        return tuple(answers)
