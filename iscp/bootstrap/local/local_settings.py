"""The settings of a process that runs jobs without a node: those of a node, as far as they concern jobs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from iscp.bootstrap.configuration.setting_variables import NOT_SETTINGS, VARIABLE_PREFIX
from iscp.core.settings.config import JobLogConfig, NodeConfig, ProbeConfig

NODE_ID = "run"
"""The name that such a process goes by, as settings want one."""

_NOT_HERE = {"ISCP_NODE_ID": NODE_ID, "ISCP_LOG__URI": "/nonexistent"}
"""What a node cannot be without, and no run has."""

DEFAULTS = NodeConfig(node_id=NODE_ID, log=JobLogConfig(uri=""))
"""The settings where none are given."""


FOLLOWING = replace(DEFAULTS, probe=ProbeConfig(interval_min_s=1.0, interval_max_s=10.0))
"""The settings where none are given of a process that follows its tables: nobody notifies it, as writers do a node."""


def local_settings(
    file: Path | None, environ: Mapping[str, str] = os.environ, *, following: bool = False
) -> NodeConfig:
    """Return the settings of `file`, if there is one, and of the variables. Raises ConfigurationError."""
    if file is None and not _any_setting(environ):
        return FOLLOWING if following else DEFAULTS  # at once: pydantic is not loaded
    from iscp.bootstrap.configuration.settings import check_files, load_settings

    return check_files(load_settings(file, {**environ, **_NOT_HERE}), environ)


def _any_setting(environ: Mapping[str, str]) -> bool:
    return any(name.startswith(VARIABLE_PREFIX) and name not in NOT_SETTINGS for name in environ)
