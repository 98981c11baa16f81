"""Two DAGs: one brings the targets of job files up to date, and one waits for a version of them, then reads it.

Airflow's environment needs nothing of iscp. `ISCP` is the command of an environment that has `iscp-delta[node]`, and
`LAKE` the directory of the tables and of `jobs.yaml`.
"""

from __future__ import annotations

import os

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Param
from iscp_version import VersionSensor

ISCP, LAKE = os.environ.get("ISCP", "iscp"), os.environ["LAKE"]
JOBS = f"{LAKE}/jobs.yaml"

with DAG("keep_fresh", schedule="*/5 * * * *", catchup=False, max_active_runs=1):
    # Ends with 1 if a job failed: what the others have written stays, and the next run goes on from there.
    BashOperator(task_id="iscp_run", bash_command=f"{ISCP} run {JOBS}")

with DAG("report", schedule=None, params={"version": Param(0, type="integer")}):
    arrived = VersionSensor(
        task_id="orders_arrived",
        files=[JOBS],
        job="orders_copy",
        table=f"{LAKE}/orders",
        version="{{ params.version }}",
        iscp=ISCP,
        timeout=3_600,
    )
    arrived >> BashOperator(task_id="report", bash_command="echo 'version {{ params.version }} is in the copy'")
