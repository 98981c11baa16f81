"""A whole soak: tables and jobs are made and built, faults come while all is written to, and then it is judged."""

from __future__ import annotations

import random
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from iscp.model.job.job_row import JobState, Reason
from iscp.model.values.errors import IscpError
from tests.soak.comparing import compare
from tests.soak.faults import Fault, order_of_faults, strike
from tests.soak.growth import MIB, Verdict, judge_processes, judge_stores
from tests.soak.lags import all_arrivals
from tests.soak.links import Links
from tests.soak.reporting import Findings
from tests.soak.rig import COMPACT_COMMITS, HEAP_MIB, Rig, insist
from tests.soak.sampling import Sampler
from tests.soak.soak_plan import Plan, make_plan

BUILD_S_PER_JOB = 3.0
"""How long the first snapshot of a job may take, on average, on a machine that does other things as well."""

WAIT_MIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Size:
    minutes: float
    tables: int
    jobs: int
    pace_per_s: float = 2.0
    fault_every_s: float = 60.0
    sample_every_s: float = 5.0
    nodes: int = 3


@dataclass
class Run:
    """What has come of a soak so far."""

    rig: Rig
    plan: Plan
    size: Size
    seed: int
    say: Callable[[str], None]
    sampler: Sampler
    begin_at_s: float = field(default_factory=time.time)
    commits: int = 0
    faults: list[Fault] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)

    def build(self) -> None:
        self.rig.make_tables(self.plan, self.seed)
        self.say(f"{len(self.plan.tables)} tables are there")
        self.rig.start()
        self.rig.register(self.plan)
        self.say(f"{len(self.plan.jobs)} jobs are registered")
        self.settle()
        self.say("all are built")

    def settle(self) -> None:
        """Wait until every job has applied the newest version of its table, and nothing is wrong with any."""
        allowed_s = max(WAIT_MIN_S, BUILD_S_PER_JOB * self.size.jobs)
        until_s = time.monotonic() + allowed_s
        for job in self.plan.jobs:
            insist(
                lambda job=job: self.rig.client.wait(  # type: ignore[misc]
                    f"{self.rig.lake}/{job.table.name}", job.name, timeout_s=max(1.0, until_s - time.monotonic())
                )
            )

    def suffer(self) -> None:
        """Faults, one after the other, while the tables change."""
        self.begin_at_s = time.time()
        end_s = time.monotonic() + 60 * self.size.minutes
        chance, kinds = random.Random(self.seed), order_of_faults(self.seed)
        with self.sampler.sampling(), self.rig.writing(self.plan, self.size.pace_per_s, self.seed) as commits:
            while time.monotonic() + self.size.fault_every_s <= end_s:
                next_s = time.monotonic() + self.size.fault_every_s
                self.faults.append(fault := strike(self.rig, next(kinds), chance))
                self.say(f"{fault.what}: {fault.whom}, {fault.end_at_s - fault.begin_at_s:.1f} s")
                time.sleep(max(0.0, next_s - time.monotonic()))
            time.sleep(max(0.0, end_s - time.monotonic()))
        (self.commits,) = commits
        self.say(f"{self.commits} commits were made")

    def judge(self, keys_before: int) -> None:
        self.settle()
        for node_id in self.rig.members:
            self.rig.wait_ready(node_id)
        self.say("all is applied")
        self.wrong = compare(self.rig, self.plan) | self._failing()
        self.verdicts = judge_processes(self.sampler.processes, HEAP_MIB * MIB)
        keys_after = sum(self.rig.etcd_keys().values())
        self.verdicts += judge_stores(self.sampler.stores, keys_before, keys_after, COMPACT_COMMITS)

    def _failing(self) -> dict[str, str]:
        return {
            f"{job.name}, a job": f"{job.state.value} {job.reason.value}: {job.status.error_msg}"
            for job in self.rig.every_job()
            if job.state is JobState.ERROR or job.reason is not Reason.NONE
        }

    def findings(self, fault: str) -> Findings:
        arrivals = all_arrivals(self.plan, self.rig.lake, Path(self.rig.derived), self.rig.layout.job_log)
        return Findings(
            self.begin_at_s,
            max([time.time() if fault else self.begin_at_s, *(each.at_s for each in self.sampler.stores)]),
            asdict(self.size),
            self.commits,
            self.faults,
            [each for each in arrivals if each.at_s >= self.begin_at_s],
            self.sampler.processes,
            self.sampler.stores,
            self.verdicts,
            self.wrong,
            fault,
        )


def play(root: Path, size: Size, seed: int, say: Callable[[str], None], out: Path) -> Findings:
    """Play a soak below `root`; the nodes' logs are copied to `out` unless all holds."""
    plan = make_plan(size.tables, size.jobs)
    with Links() as links:
        rig = Rig(root, links=links, count=size.nodes)
        rig.lay_links()
        run = Run(rig, plan, size, seed, say, Sampler(rig, size.sample_every_s))
        fault = ""
        try:
            run.build()
            keys_before = sum(rig.etcd_keys().values())
            run.suffer()
            run.judge(keys_before)
        except (AssertionError, IscpError, OSError):
            fault = traceback.format_exc()
        finally:
            rig.stop()
        findings = run.findings(fault)
        if not findings.holds:
            shutil.copytree(rig.layout.logs, out / "logs", dirs_exist_ok=True)
        return findings
