"""A fault of one setting, and checks of addresses and URLs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Self
from urllib.parse import urlsplit

from iscp.core.values.errors import ConfigurationError, IscpError

URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?/?")
"""A URL of scheme, host and port, and nothing else."""


@dataclass(frozen=True, slots=True)
class SettingFault:
    """The fault of one setting, and what to do about it.

    `path` is the subject of `message`, as in `etcd.user` `is empty`, unless it `is_sentence` by itself.
    """

    path: str
    message: str
    remedy: str = ""
    is_sentence: bool = False

    @classmethod
    def about(cls, path: str, sentence: str, remedy: str = "") -> Self:
        """Return the fault of the setting at `path` that a whole sentence says."""
        return cls(path, sentence, remedy, is_sentence=True)

    @classmethod
    def from_error(cls, error: IscpError) -> Self:
        """Return the fault that an error about a setting says."""
        return cls(error.field, error.message, error.remedy, is_sentence=not error.field_is_subject)

    @property
    def line(self) -> str:
        """Return what is wrong, with the setting's path."""
        return f"{self.path}{':' if self.is_sentence else ''} {self.message}"

    def error(self) -> ConfigurationError:
        """Return the error that says this fault."""
        if self.is_sentence:
            return ConfigurationError(self.message, about=self.path, remedy=self.remedy)
        return ConfigurationError(self.message, field=self.path, remedy=self.remedy)


def is_loopback(address: str) -> bool:
    """Return whether HOST:PORT is reached from this machine alone. A name other than localhost may be anybody's."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def url_fault(url: str) -> str:
    """Return what is wrong with a URL that is called by http or https, or an empty text if nothing is."""
    if not url.isascii() or not url.isprintable() or " " in url:
        return "has a blank, or a character that URLs cannot have"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "has a host or a port that cannot be one"
    if parts.scheme not in ("http", "https"):
        return "is neither http nor https"
    if "@" in parts.netloc:
        return "has a user or a password in it"
    if not host or not URL.fullmatch(f"{parts.scheme}://{parts.netloc}"):
        return "names no host"
    if port == 0 or parts.netloc.endswith(":"):
        return "has a port that cannot be one"
    return "has a fragment" if "#" in url else ""
