"""The settings of OpenLineage events, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iscp.core.values.setting_faults import SettingFault, url_fault
from iscp.core.values.setting_fields import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLineageConfig:
    """The receiver of OpenLineage events. See docs/lineage.md."""

    url: str = setting("", "URL that events are posted to, such as http://HOST:5000/api/v1/lineage; empty: none")
    path: str = setting("", "File that events are appended to, each as a line of JSON, instead of a URL; empty: none")
    namespace: str = setting("", "Namespace of the jobs in events; empty: the cluster's name")
    headers_file: str = setting("", "File with headers for the URL, `NAME: VALUE` on each line; empty: none")

    @property
    def used(self) -> bool:
        return bool(self.url or self.path)


def openlineage_faults(lineage: OpenLineageConfig) -> Iterator[SettingFault]:
    """Yield what is wrong with the settings of events."""
    if lineage.url and (fault := url_fault(lineage.url)):
        yield SettingFault("openlineage.url", fault, "Write http://HOST:PORT/PATH, or with https")
    if lineage.url and lineage.path:
        yield SettingFault("openlineage.path", "is given beside openlineage.url", "Give one of the two")
    if lineage.path and not lineage.path.startswith("/"):
        yield SettingFault.about("openlineage.path", f"{lineage.path!r} is not absolute", "Write it from / on")
    if lineage.headers_file and not lineage.url:
        yield SettingFault("openlineage.url", "is missing beside openlineage.headers_file", "Name the receiver")
    if not lineage.namespace.isprintable():
        yield SettingFault("openlineage.namespace", "has signs that cannot be seen", "Use letters, digits and signs")
