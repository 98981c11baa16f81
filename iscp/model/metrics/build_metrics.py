"""Metrics of first snapshots that are built by ranges."""

from __future__ import annotations

from iscp.model.metrics.metric import Attribute, DeclaredMetric, owner_gauge

STAGE = Attribute("iscp.stage", "`waiting`, `building` or `publishing`")

BUILDS = owner_gauge("iscp.build.count", "{build}", "[Builds](builds.md) of jobs", STAGE)
TASKS = owner_gauge("iscp.build.tasks", "{task}", "Tasks of builds that are not finished")
TASKS_RUNNING = owner_gauge("iscp.build.tasks.running", "{task}", "Of these, tasks that nodes work on")
LEFT = owner_gauge(
    "iscp.build.left", "{build}", "What is left of the builds that go on, 1 for each that has only begun"
)

METRICS: tuple[DeclaredMetric, ...] = (BUILDS, TASKS, TASKS_RUNNING, LEFT)
