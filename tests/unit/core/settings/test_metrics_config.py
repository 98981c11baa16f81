from __future__ import annotations

from dataclasses import replace

import pytest

from iscp.core.settings.config import JobLogConfig, NodeConfig
from iscp.core.settings.config_faults import faults
from iscp.core.settings.metrics_config import JOBS_NAMED_MAX, MetricsConfig

CONFIG = NodeConfig(node_id="n", log=JobLogConfig(uri="/log"))


def paths(metrics: MetricsConfig) -> list[str]:
    return [fault.path for fault in faults(replace(CONFIG, metrics=metrics))]


def test_a_node_measures_only_for_whom_it_has_a_place() -> None:
    assert not MetricsConfig().used
    assert MetricsConfig(listen="127.0.0.1:9464").used
    assert MetricsConfig(otlp_endpoint="http://collector:4318").used


def test_right_settings_have_no_fault() -> None:
    assert paths(MetricsConfig(listen="127.0.0.1:9464", otlp_endpoint="https://collector/otlp")) == []


@pytest.mark.parametrize("endpoint", ["collector:4318", "http://user:secret@collector:4318", "ftp://collector"])
def test_a_wrong_url_is_refused_without_being_repeated(endpoint: str) -> None:
    (fault,) = faults(replace(CONFIG, metrics=MetricsConfig(otlp_endpoint=endpoint)))
    assert fault.path == "metrics.otlp_endpoint"
    assert endpoint not in fault.message


def test_no_more_jobs_are_named_than_a_scrape_can_carry() -> None:
    assert paths(MetricsConfig(per_job_max=JOBS_NAMED_MAX)) == []
    assert paths(MetricsConfig(per_job_max=JOBS_NAMED_MAX + 1)) == ["metrics.per_job_max"]


def test_where_metrics_are_served_has_to_be_an_address() -> None:
    assert paths(MetricsConfig(listen="9464")) == ["metrics.listen"]


def test_metrics_are_not_served_to_other_machines_without_tls() -> None:
    assert paths(MetricsConfig(listen="0.0.0.0:9464")) == ["metrics.listen"]
    insecure = replace(CONFIG.security, insecure=True)
    assert faults(replace(CONFIG, security=insecure, metrics=MetricsConfig(listen="0.0.0.0:9464"))) == []
