"""The settings of traces, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iscp.core.values.setting_faults import SettingFault, url_fault
from iscp.core.values.setting_fields import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingConfig:
    """The receiver of traces. See docs/tracing.md."""

    endpoint: str = setting("", "URL that spans are posted to as OTLP, such as http://HOST:4318/v1/traces; empty: none")
    sample_ratio: float = setting(1.0, "Part of all traces that is recorded, 0 to 1", least=0.0)
    headers_file: str = setting("", "File with headers for the receiver, `NAME: VALUE` on each line; empty: none")


def tracing_faults(tracing: TracingConfig) -> Iterator[SettingFault]:
    """Yield what is wrong with the settings of traces."""
    if tracing.endpoint and (fault := url_fault(tracing.endpoint)):
        yield SettingFault("tracing.endpoint", fault, "Write http://HOST:4318/v1/traces, or with https")
    if tracing.sample_ratio > 1.0:
        yield SettingFault.about("tracing.sample_ratio", f"{tracing.sample_ratio:g} is too large", "Give 1 or less")
    if tracing.headers_file and not tracing.endpoint:
        yield SettingFault("tracing.endpoint", "is missing beside tracing.headers_file", "Name the receiver of traces")
