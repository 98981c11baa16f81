"""TLS of gRPC and of sockets with certificates that are renewed: channels of clients, the words for handshakes that
failed, and the credentials of servers.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc

from iscp.system.tls.tls_files import ShownNames, Tls, TlsSource, shown_names

log = logging.getLogger(__name__)

# --- channels that use new certificates from the next call on ---------------------------------------------------------
# No call is lost. A channel of gRPC keeps its credentials for ever. So there is another one after each renewal; the one
# before is closed when its last call has ended, and a stream lasts on it for as long as nobody ends it.

Options = tuple[tuple[str, Any], ...]


def secure_channel(library: Any, target: str, source: TlsSource, options: Options) -> Any:
    """Return a channel of `grpc` or of `grpc.aio`, which connects when it is first used."""
    if isinstance(source, Tls):
        return _open(library, target, options, source)
    renewing = RenewingChannel if library is grpc else RenewingAsyncChannel
    return renewing(source, partial(_open, library, target, options))


def _open(library: Any, target: str, options: Options, tls: Tls) -> Any:
    named = (("grpc.ssl_target_name_override", tls.server_name),) if tls.server_name else ()
    credentials = grpc.ssl_channel_credentials(tls.authority or None, tls.key or None, tls.certificate or None)
    return library.secure_channel(target, credentials, options=(*options, *named))


class _Generation:
    """A channel with one set of certificates, and how many calls are under way on it."""

    def __init__(self, tls: Tls, channel: Any) -> None:
        self.tls = tls
        self.channel = channel
        self.calls = 0


class _Generations:
    """The newest channel, and those before it that still have calls. Safe to use from several threads."""

    def __init__(self, source: TlsSource, open_channel: Callable[[Tls], Any], close: Callable[[Any], Any]) -> None:
        self._source = source
        self._open = open_channel
        self._close = close
        self._lock = threading.Lock()
        self._newest = self._make(source.current())
        self._former: list[_Generation] = []
        self._closed = False

    def begin(self) -> _Generation:
        """Begin one call more on the newest; it has to be ended."""
        tls, idle = self._source.current(), []
        with self._lock:
            if tls is not self._newest.tls and not self._closed:
                self._former.append(self._newest)
                self._newest = self._make(tls)
            if self._former:
                idle = [each for each in self._former if each.calls == 0]
                self._former = [each for each in self._former if each.calls]
            begun = self._newest
            begun.calls += 1
        for each in idle:
            self._close(each.channel)
        return begun

    def end(self, generation: _Generation) -> None:
        # Whoever begins the next call closes what is idle: gRPC's own threads, which come here, must not.
        with self._lock:
            generation.calls -= 1

    @contextmanager
    def call(self) -> Iterator[_Generation]:
        """Yield a generation for a call that lasts as long as its method."""
        generation = self.begin()
        try:
            yield generation
        finally:
            self.end(generation)

    def follow(self, invoke: Callable[[_Generation], Any], follow: Callable[[Any, Callable[[], None]], bool]) -> Any:
        """Make a call that goes on after its method has returned: `follow` has its end notified."""
        generation = self.begin()
        try:
            call = invoke(generation)
        except BaseException:
            self.end(generation)
            raise
        if not follow(call, lambda: self.end(generation)):  # it has ended already
            self.end(generation)
        return call

    @property
    def newest(self) -> Any:
        return self._newest.channel

    def drain(self) -> list[Any]:
        """Return all channels, to be closed."""
        with self._lock:
            self._closed = True
            former, self._former = self._former, []
            return [each.channel for each in (*former, self._newest)]

    def _make(self, tls: Tls) -> _Generation:
        return _Generation(tls, self._open(tls))


class _Method:
    """One method, on whichever channel is the newest."""

    def __init__(self, generations: _Generations, kind: str, arguments: tuple[Any, ...], given: dict[str, Any]) -> None:
        self._generations = generations
        self._make: Callable[[Any], Any] = lambda channel: getattr(channel, kind)(*arguments, **given)
        self._made: tuple[Any, Any] = (None, None)

    def _of(self, generation: _Generation) -> Any:
        channel, method = self._made
        if channel is not generation.channel:
            method = self._make(generation.channel)
            self._made = generation.channel, method
        return method


class _BlockingMethod(_Method):
    """One answer: the call ends when it is there."""

    def __call__(self, *arguments: Any, **given: Any) -> Any:
        with self._generations.call() as generation:
            return self._of(generation)(*arguments, **given)

    def with_call(self, *arguments: Any, **given: Any) -> Any:
        with self._generations.call() as generation:
            return self._of(generation).with_call(*arguments, **given)

    def future(self, *arguments: Any, **given: Any) -> Any:
        invoke = lambda generation: self._of(generation).future(*arguments, **given)  # noqa: E731
        return self._generations.follow(invoke, lambda call, ended: call.add_callback(ended))


class _StreamMethod(_Method):
    """Many answers: the call ends after the last."""

    def __call__(self, *arguments: Any, **given: Any) -> Any:
        invoke = lambda generation: self._of(generation)(*arguments, **given)  # noqa: E731
        return self._generations.follow(invoke, lambda call, ended: call.add_callback(ended))


class _AsyncMethod(_Method):
    """A method of a channel of asyncio, where all calls are futures."""

    def __call__(self, *arguments: Any, **given: Any) -> Any:
        def follow(call: Any, ended: Callable[[], None]) -> bool:
            call.add_done_callback(lambda _: ended())
            return True

        return self._generations.follow(lambda generation: self._of(generation)(*arguments, **given), follow)


class RenewingChannel(grpc.Channel):  # type: ignore[misc]
    """For threads. Closing it ends all calls."""

    def __init__(self, source: TlsSource, open_channel: Callable[[Tls], grpc.Channel]) -> None:
        self._generations = _Generations(source, open_channel, lambda channel: channel.close())

    def unary_unary(self, *arguments: Any, **given: Any) -> _BlockingMethod:
        return _BlockingMethod(self._generations, "unary_unary", arguments, given)

    def stream_unary(self, *arguments: Any, **given: Any) -> _BlockingMethod:
        return _BlockingMethod(self._generations, "stream_unary", arguments, given)

    def unary_stream(self, *arguments: Any, **given: Any) -> _StreamMethod:
        return _StreamMethod(self._generations, "unary_stream", arguments, given)

    def stream_stream(self, *arguments: Any, **given: Any) -> _StreamMethod:
        return _StreamMethod(self._generations, "stream_stream", arguments, given)

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        """Subscribe to the newest channel alone."""
        self._generations.newest.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        self._generations.newest.unsubscribe(callback)

    def close(self) -> None:
        for channel in self._generations.drain():
            channel.close()

    def __enter__(self) -> RenewingChannel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class RenewingAsyncChannel:
    """For the tasks of one event loop: what iscp uses of `grpc.aio.Channel`. Closing it ends all calls."""

    def __init__(self, source: TlsSource, open_channel: Callable[[Tls], Any]) -> None:
        self._generations = _Generations(source, open_channel, self._close_soon)
        self._closing: set[asyncio.Task[None]] = set()

    def unary_unary(self, *arguments: Any, **given: Any) -> _AsyncMethod:
        return _AsyncMethod(self._generations, "unary_unary", arguments, given)

    def unary_stream(self, *arguments: Any, **given: Any) -> _AsyncMethod:
        return _AsyncMethod(self._generations, "unary_stream", arguments, given)

    async def close(self) -> None:
        await asyncio.gather(*self._closing, *(channel.close() for channel in self._generations.drain()))

    def _close_soon(self, channel: Any) -> None:
        task = asyncio.ensure_future(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


# --- gRPC's errors where no connection by TLS could be made -----------------------------------------------------------

_NEVER_CONNECTED = "failed to connect"
_CLOSED = "Socket closed"
_ISSUER = "unable to get local issuer certificate", "self signed certificate", "self-signed certificate"
_FAULTS = (  # what the words of gRPC and BoringSSL mean, and what helps
    ("Hostname Verification Check failed", "its certificate is for other names", "Name one of them by server_name"),
    ("certificate has expired", "its certificate has expired", "Have it renewed there"),
    ("certificate is not yet valid", "its certificate is not valid yet", "See whether both machines' clocks are right"),
    *((words, "its certificate comes from another authority", "Give its authority as ca_file") for words in _ISSUER),
    ("WRONG_VERSION_NUMBER", "it does not use TLS", "Leave ca_file out, or give it certificates"),
    ("create security", "the certificate or key of this side cannot be used", "Give PEM files that belong together"),
)


def handshake_fault(text: str) -> tuple[str, str] | None:
    """Return the fault and the remedy, where this side refused the other; None: it is something else."""
    if _NEVER_CONNECTED not in text:
        return None
    return next(((fault, remedy) for words, fault, remedy in _FAULTS if words in text), None)


def may_be_refused(text: str) -> bool:
    """Return whether the other side has hung up during the handshake. It gives no reason; it may also have just
    ended.
    """
    return _NEVER_CONNECTED in text and _CLOSED in text


REFUSED_REMEDY = (
    "A server with TLS does so to who has none, or shows it no certificate, or one that has expired or comes from "
    "another authority: give ca_file, cert_file and key_file"
)


# --- certificates that servers show and demand ------------------------------------------------------------------------
# The certificates are for gRPC, and for sockets.


def server_credentials(source: TlsSource) -> grpc.ServerCredentials:
    """Return credentials of `source` at each new connection; clients need a certificate of its authority."""
    last = source.current()

    def fetch() -> Any:
        nonlocal last
        if (found := source.current()) is last:
            return None
        last = found
        return _configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(last), fetch, require_client_authentication=bool(last.authority)
    )


def _configuration(tls: Tls) -> Any:
    return grpc.ssl_server_certificate_configuration([(tls.key, tls.certificate)], tls.authority or None)


def names_shown(context: grpc.ServicerContext) -> ShownNames:
    """Return the names in the certificate of who calls; none without TLS."""
    return shown_names(b"".join(context.auth_context().get("x509_pem_cert", ())))


class ServerContext:
    """The `server_credentials` for sockets. A source without authority requires no certificate."""

    def __init__(self, source: TlsSource) -> None:
        self._source = source
        self._last = source.current()
        self._context = _context(self._last)

    def current(self) -> ssl.SSLContext:
        """Return the context for one more connection."""
        if (found := self._source.current()) is not self._last:
            self._context, self._last = _context(found), found
        return self._context


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory(prefix="iscp-tls-") as folder:  # ssl reads a chain from files alone
        certificate, key = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        certificate.write_bytes(tls.certificate)
        key.touch(0o600)
        key.write_bytes(tls.key)
        context.load_cert_chain(certificate, key)
    if tls.authority:
        context.load_verify_locations(cadata=tls.authority.decode())
        context.verify_mode = ssl.CERT_REQUIRED
    return context
