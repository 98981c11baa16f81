"""The cluster that a command goes to, and the options of the whole command line.

The user's own file of contexts has clusters by name, and the one that commands go to unless an option names another:

```toml
current = "lake"

[context.lake]
endpoint = "10.0.0.1:7430,10.0.0.2:7430"
ca_file = "/etc/lake/ca.pem"
```
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iscp.cli.shell.terminal import say
from iscp.model.values.errors import ConfigurationError
from iscp.system.small_files import read_toml, replace_file
from iscp.system.tls.tls_files import DEFAULT_ENDPOINT, ENDPOINT_VARIABLE, endpoint_or_default

if TYPE_CHECKING:
    from iscp.client.admin_client import Client
    from iscp.model.values.errors import IscpError
    from iscp.system.tls.tls_files import TlsFiles


# --- the file of contexts ---------------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REPAIR = "Correct the file, or remove it"


@dataclass(frozen=True, slots=True)
class Context:
    """A cluster: its nodes' addresses, and the files (PEM) that TLS needs; without `ca_file` there is no TLS.

    `token_file`: the file with the token by which the user is known.
    """

    endpoint: str
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    token_file: str = ""

    def token(self) -> Path | None:
        """Return the path of the token's file; nothing is read yet."""
        return Path(self.token_file) if self.token_file else None

    def tls(self) -> TlsFiles | None:
        """Return the files; nothing is read yet."""
        from iscp.system.tls.tls_files import TlsFiles

        found = TlsFiles.named(self.ca_file, self.cert_file, self.key_file, self.server_name)
        return found if found.ca_file else None


@dataclass(frozen=True, slots=True)
class Contexts:
    """All of the file; `current` is empty where none is chosen."""

    current: str = ""
    known: Mapping[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        """Raises ConfigurationError."""
        if name not in self.known:
            remedy = f"Known are {', '.join(sorted(self.known))}" if self.known else "See `iscp-admin context set`"
            raise ConfigurationError(f"there is no context {name!r}", about="context", remedy=remedy)
        return self.known[name]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The choice of where a command goes, and what said so: `--endpoint`, a variable, a context or the default."""

    context: Context
    source: str
    name: str = ""


def config_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return `iscp/config.toml` below $XDG_CONFIG_HOME, which has to be absolute, or ~/.config."""
    given = environ.get("XDG_CONFIG_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".config") / "iscp" / "config.toml"


def choose(endpoint: str | None, name: str | None, environ: Mapping[str, str] = os.environ) -> Chosen:
    """Return the choice: an option wins over the variable, it over the current context, and that over the default.

    Raises ConfigurationError; the file is read only where it counts.
    """
    if endpoint:
        return Chosen(Context(endpoint), "--endpoint")
    if name:
        return Chosen(load_contexts(config_path(environ)).get(name), "--context", name)
    if set_there := environ.get(ENDPOINT_VARIABLE):
        return Chosen(Context(set_there), ENDPOINT_VARIABLE)
    contexts = load_contexts(config_path(environ))
    if contexts.current:
        return Chosen(contexts.get(contexts.current), "context", contexts.current)
    return Chosen(Context(DEFAULT_ENDPOINT), "default")


def load_contexts(path: Path) -> Contexts:
    """Return the contexts, or None if there is no file. Raises ConfigurationError with what is wrong in it."""
    try:
        root = read_toml(path)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror or error}", about="context", remedy=_REPAIR
        ) from error
    except ValueError as error:
        raise ConfigurationError(f"{path} {error}", about="context", remedy=_REPAIR) from error
    _refuse_unknown(path, "", root, {"current", "context"})
    given = root.get("context", {})
    if not isinstance(given, dict):
        raise ConfigurationError(f"{path}: context is no table", about="context", remedy=_REPAIR)
    contexts = Contexts(
        _text(path, "current", root), {name: _context(path, name, each) for name, each in given.items()}
    )
    if contexts.current:
        contexts.get(contexts.current)
    return contexts


def _context(path: Path, name: str, given: Any) -> Context:
    names = [each.name for each in fields(Context)]
    _refuse_unknown(path, f"context.{name}.", given if isinstance(given, dict) else {"": given}, set(names))
    context = Context(**{each: _text(path, each, given) for each in names})
    return check_context(name, context)


def check_context(name: str, context: Context) -> Context:
    """Raises ConfigurationError where it cannot be one."""
    if not _NAME.fullmatch(name):
        remedy = "Use letters, digits, dots, dashes and underscores"
        raise ConfigurationError(f"{name!r} is no name for a context", about="context", remedy=remedy)
    if not context.endpoint:
        raise ConfigurationError("is missing", field=f"context.{name}.endpoint", remedy="Give it as HOST:PORT")
    endpoint_or_default(context.endpoint)
    if bool(context.cert_file) is not bool(context.key_file) or (context.cert_file and not context.ca_file):
        raise ConfigurationError(
            "a certificate, its key and an authority go together",
            about=f"context.{name}.cert_file",
            remedy="Give cert_file, key_file and ca_file, or ca_file alone",
        )
    return context


def _refuse_unknown(path: Path, prefix: str, given: Mapping[str, Any], known: set[str]) -> None:
    if unknown := sorted(given.keys() - known):
        raise ConfigurationError(
            f"{path} has a field {prefix}{unknown[0]} that is not known",
            about=f"{prefix}{unknown[0]}",
            remedy=f"Known are {', '.join(sorted(known))}",
        )


def _text(path: Path, name: str, given: Mapping[str, Any]) -> str:
    value = given.get(name, "")
    if not isinstance(value, str):
        raise ConfigurationError(f"{path}: {name} is {value!r}, not a text", about=name, remedy=_REPAIR)
    return value


def save_contexts(path: Path, contexts: Contexts) -> None:
    """Whole or not at all. Raises ConfigurationError if it cannot be written."""
    lines = [f"current = {json.dumps(contexts.current)}", ""] if contexts.current else []
    for name in sorted(contexts.known):
        lines.append(f'[context."{name}"]')
        given = asdict(contexts.known[name])
        lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in given.items() if value]
        lines.append("")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, "\n".join(lines).encode())
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror or error}", about="context", remedy="Make it writable"
        ) from error


def with_context(contexts: Contexts, name: str, context: Context | None) -> Contexts:
    """Return the contexts with another one of that name, or (None) without it; it is not current any more then."""
    known = {each: value for each, value in contexts.known.items() if each != name}
    if context is not None:
        return replace(contexts, known={**known, name: check_context(name, context)})
    return Contexts("" if contexts.current == name else contexts.current, known)


# --- options of the whole command line --------------------------------------------------------------------------------
# The options are the cluster, the form of the output, and how long a request may take.

REQUEST_TIMEOUT_S = 30.0
"""Seconds that a command calls nodes for an answer if --request-timeout does not say it; then it fails."""


@dataclass(slots=True)
class Invocation:
    """The options that may stand anywhere on the line; one further right wins."""

    endpoint: str | None = None
    context: str | None = None
    output: str = "table"
    request_timeout_s: float | None = None
    pause: Callable[[float], None] = time.sleep

    @property
    def wide(self) -> bool:
        """Return whether all columns of a table are to be shown, however narrow the terminal is."""
        return self.output == "wide"

    @property
    def for_people(self) -> bool:
        """Return whether the answer is in words and tables, and not for a program."""
        return self.output in ("table", "wide")

    def client(self) -> Client:
        from iscp.client.admin_client import Client

        chosen = self.chosen().context
        tls, token = chosen.tls(), chosen.token()
        timeout_s = self.within_s(REQUEST_TIMEOUT_S)
        # Where nobody listens a person is to know it at once, and a script repeats its command.
        notice = self._show_notice
        return Client(chosen.endpoint, timeout_s=timeout_s, tls=tls, token=token, notice=notice, wait_for_ready=False)

    def within_s(self, seconds: float) -> float:
        """Return how long a request may take, in seconds: `seconds` if the command line says nothing."""
        return seconds if self.request_timeout_s is None else self.request_timeout_s

    def chosen(self) -> Chosen:
        """Return where the command goes. Raises ConfigurationError if the user's file of contexts is wrong."""

        return choose(self.endpoint, self.context)

    def _show_notice(self, error: IscpError, left_s: float) -> None:
        """Show a notice on stderr, where with `-o json` only errors are."""
        if self.output != "json":
            say(f"{error.message}; trying for {left_s:.0f} s more", err=True)
