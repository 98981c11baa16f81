"""Make the settings of Spark from those of a node."""

from __future__ import annotations

from pathlib import Path

from iscp.adapters.delta.spark.jvm_launch import SparkSettings
from iscp.core.settings.config import NodeConfig


def spark_settings(config: NodeConfig, work_dir: Path) -> SparkSettings:
    catalog = {f"spark.sql.catalog.{name}": value for name, value in config.catalog.items()}
    return SparkSettings(
        work_dir=work_dir,
        master=config.spark.master,
        driver_memory_mb=config.spark.driver_memory_mb,
        conf={**catalog, **config.spark.conf},
        s3=config.storage.s3,
        insecure=config.security.insecure,
    )
