"""The JVM's command line and settings."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from iscp.adapters.delta.spark.jvm_launch import (
    SparkSettings,
    default_cache_dir,
    default_conf,
    java_command,
    java_environ,
    properties_file,
    spark_defaults,
    write_properties,
)


def command(settings: SparkSettings, environ: dict[str, str]) -> list[str]:
    return java_command(Path("/java"), settings, [Path("/a.jar"), Path("/b.jar")], ["-option"], environ)


def test_the_cache_is_where_the_environment_says() -> None:
    assert default_cache_dir({"ISCP_CACHE": "/c", "XDG_CACHE_HOME": "/x"}) == Path("/c")
    assert default_cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/iscp")
    assert default_cache_dir({}) == Path.home() / ".cache" / "iscp"


def test_what_the_user_set_is_not_on_the_command_line(tmp_path: Path) -> None:
    settings = SparkSettings(work_dir=tmp_path, conf={"spark.hadoop.fs.s3a.secret.key": "hush"})
    assert not any("hush" in word for word in command(settings, {}))


def test_properties_are_escaped_and_private(tmp_path: Path) -> None:
    settings = SparkSettings(work_dir=tmp_path, master="local[3]", conf={"spark.a": " b\\c\n=d: é"})
    settings.scratch_dir.mkdir()
    write_properties(settings)
    file = properties_file(settings)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = file.read_text(encoding="utf-8").splitlines()
    assert r"spark.a=\ b\\c\u000a\=d\:\ é" in lines
    assert "spark.master=local[3]" in lines


def test_driver_settings_are_read_where_sparks_launcher_would(tmp_path: Path) -> None:
    conf_dir = tmp_path / "conf"
    conf_dir.mkdir()
    (conf_dir / "spark-defaults.conf").write_text(
        "# ours\nspark.driver.memory   3g\nspark.driver.extraJavaOptions=-Da='b c' -Dd=e\n"
    )
    environ = {"SPARK_CONF_DIR": str(conf_dir)}
    assert spark_defaults([conf_dir])["spark.driver.memory"] == "3g"
    words = command(SparkSettings(work_dir=tmp_path), environ)
    assert "-Xmx3g" in words
    assert "-Da=b c" in words
    assert words[2] == os.pathsep.join(["/a.jar", "/b.jar", str(conf_dir)])
    mine = SparkSettings(work_dir=tmp_path, conf={"spark.driver.memory": "5g", "spark.driver.extraClassPath": "/x"})
    words = command(mine, environ)
    assert "-Xmx5g" in words
    assert words[2].startswith("/x:/a.jar")


def test_memory_is_the_settings_where_nobody_says_otherwise(tmp_path: Path) -> None:
    assert "-Xmx777m" in command(SparkSettings(work_dir=tmp_path, driver_memory_mb=777), {})


def test_log4j_is_quiet_unless_configured(tmp_path: Path) -> None:
    def configured(environ: dict[str, str]) -> bool:
        words = command(SparkSettings(work_dir=tmp_path), environ)
        return any("-Dlog4j2.configurationFile" in w for w in words)

    assert configured({})
    (tmp_path / "log4j2.properties").write_text("")
    assert not configured({"SPARK_CONF_DIR": str(tmp_path)})


def test_a_foreign_spark_home_gives_its_configuration_only(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    environ = java_environ(SparkSettings(work_dir=tmp_path), {"SPARK_HOME": str(tmp_path)})
    assert environ["SPARK_HOME"].endswith("pyspark")
    assert environ["SPARK_CONF_DIR"] == str(tmp_path / "conf")


def test_executors_elsewhere_can_reach_the_driver(tmp_path: Path) -> None:
    here = SparkSettings(work_dir=tmp_path)
    elsewhere = SparkSettings(work_dir=tmp_path, master="spark://host:7077")
    assert default_conf(here)["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in default_conf(elsewhere)
    assert "SPARK_LOCAL_IP" not in java_environ(elsewhere, {})
    keys = {"AWS_ACCESS_KEY_ID": "who", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_SESSION_TOKEN": "now"}
    assert not keys.keys() & java_environ(elsewhere, keys).keys(), "they come by Spark's settings, not twice"
