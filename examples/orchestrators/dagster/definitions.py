"""Assets of Dagster that `iscp run` keeps: one for each job, with a policy of how fresh it is to be.

Dagster's environment needs nothing of iscp. `ISCP` is the command of an environment that has `iscp-delta[node]`, and
`LAKE` the directory of the tables and of `jobs.yaml`.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from datetime import timedelta

import dagster as dg

ISCP, LAKE = os.environ.get("ISCP", "iscp"), os.environ["LAKE"]
FRESH = dg.FreshnessPolicy.time_window(warn_window=timedelta(minutes=10), fail_window=timedelta(minutes=30))


def job_asset(job: str, deps: Sequence[str]) -> dg.AssetsDefinition:
    """The target of a job of `jobs.yaml`, which is materialized by bringing it up to date."""

    @dg.asset(name=job, deps=deps, freshness_policy=FRESH, kinds={"deltalake"})
    def target(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        command = [ISCP, "run", f"{LAKE}/jobs.yaml", "--select", job, "--output", "json"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        if ended.returncode or len(found) != 1:
            raise dg.Failure(f"{job}: {[each.get('error') for each in found] or ended.stderr}")
        (result,) = found
        context.log.info("%s: %s", job, result["state"])
        return dg.MaterializeResult(
            # Where no table has changed the version stays, and Dagster sees that nothing below it is stale.
            data_version=dg.DataVersion(str(result["to_version"])),
            metadata={name: result[name] for name in ("state", "rows", "seconds", "strategy", "to_version")},
        )

    return target


defs = dg.Definitions(
    assets=[dg.AssetSpec("orders"), job_asset("orders_copy", ["orders"]), job_asset("open_orders", ["orders_copy"])],
    schedules=[dg.ScheduleDefinition("keep_fresh", cron_schedule="*/5 * * * *", target=["orders_copy", "open_orders"])],
)
