"""The page over HTTP beside a real gRPC server: rights, live streams, bounds of connections, its start and its end."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import pytest

from iscp.client.admin_client import Client
from iscp.model.access.service_table import Role
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.query_plan import QueryExplanation
from iscp.model.values.errors import ConfigurationError, Unavailable
from iscp.server.access.known_callers import CertificateCaller
from iscp.server.http.http_server import HEAD_BYTES_MAX, HttpBounds
from iscp.server.page.page_app import STREAMS_PER_VIEWER_MAX
from iscp.server.page.page_server import NoServers, PageServer, PageSettings
from iscp.server.page.page_viewers import THREADS_MAX, THREADS_PER_VIEWER_MAX, Viewer
from iscp.system.threads import SystemClock
from iscp.system.tls.development_authority import CertificateKind
from tests.fakes.access import Access
from tests.fakes.admin import FakeAdmin
from tests.fakes.certs import NODE_NAME, Certs
from tests.fakes.served_page import page_beside, page_of
from tests.fakes.viewed_cluster import ViewedCluster, job_view
from tests.fakes.waiting import until

JOB = {"table": "/lake/t", "name": "copy", "account": "acme"}


def register(admin: FakeAdmin, name: str = "copy", account: str = "acme") -> None:
    spec = {"iteration": {"consumer": {"kind": "replica", "target": f"/lake/{name}", "key": ["id"]}}}
    admin.register([RegisterRequest(JobName("/lake/t", name, account), json.dumps(spec))])


def get(page: PageServer, path: str, cookie: str = "", connection: HTTPConnection | None = None) -> tuple[int, str]:
    made = connection or HTTPConnection(page.address, timeout=30)
    made.request(
        "GET", path, headers={"accept": "text/html", "cookie": "; ".join(filter(None, ("iscp_form=key", cookie)))}
    )
    answer = made.getresponse()
    text = answer.read().decode()
    made.close()
    return answer.status, text


def post(page: PageServer, path: str, fields: dict[str, str], cookie: str = "") -> HTTPResponse:
    connection = HTTPConnection(page.address, timeout=30)
    body = urlencode({"form_key": "key", **fields})
    origin = {"origin": f"http://{page.address}", "sec-fetch-site": "same-origin"}
    cookies = "; ".join(filter(None, ("iscp_form=key", cookie)))
    headers = {"content-type": "application/x-www-form-urlencoded", "cookie": cookies, **origin}
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer


@pytest.fixture
def page() -> Iterator[PageServer]:
    with page_of(ViewedCluster([job_view(0)])) as made:
        yield made


def test_a_nodes_answers_are_shown_and_jobs_are_changed() -> None:
    admin = FakeAdmin()
    register(admin)
    with page_beside(admin) as page:
        assert "copy</a>" in get(page, "/")[1]
        text = get(page, f"/job?{urlencode(JOB)}")[1]
        assert "/lake/t" in text
        answer = post(page, "/act", {"verb": "pause", **JOB})
        assert (answer.status, answer.headers["location"]) == (
            303,
            "/job?table=%2Flake%2Ft&name=copy&account=acme&done=pause",
        )
        assert "It is paused" in get(page, answer.headers["location"])[1]
        assert get(page, "/cluster")[0] == 200


def test_a_token_sees_its_account_alone_and_may_what_its_role_may() -> None:
    admin, access = FakeAdmin(), Access(SystemClock())
    register(admin)
    register(admin, "foreign", "other")
    viewer, editor = (f"iscp_token={access.token(role)}" for role in (Role.VIEWER, Role.EDITOR))
    with page_beside(admin, access) as page:
        assert get(page, "/")[0] == 303
        shown = get(page, "/", viewer)[1]
        assert "copy</a>" in shown
        assert "foreign" not in shown
        assert get(page, f"/job?{urlencode({**JOB, 'name': 'foreign', 'account': 'other'})}", viewer)[0] == 404
        assert get(page, "/cluster", viewer)[0] == 403
        assert post(page, "/act", {"verb": "pause", **JOB}, viewer).status == 403
        assert post(page, "/act", {"verb": "pause", **JOB}, editor).status == 303
        assert post(page, "/act", {"verb": "drain", "node_id": "n1"}, editor).status == 403
        assert get(page, "/", "iscp_token=garbage")[0] == 303
    assert [(each.method.rpartition("/")[2], each.result) for each in access.audit.entries] == [
        *(("Pause", "PERMISSION_DENIED"), ("Pause", "OK"), ("ChangeNode", "PERMISSION_DENIED"))
    ]


def test_a_login_makes_a_cookie_of_a_good_token_alone() -> None:
    access = Access(SystemClock())
    with page_beside(FakeAdmin(), access) as page:
        assert post(page, "/login", {"token": "garbage", "next": "/"}).status == 401
        answer = post(page, "/login", {"token": access.token(Role.VIEWER), "next": "/trouble"})
        assert (answer.status, answer.headers["location"]) == (303, "/trouble")
        cookie = str(answer.headers["set-cookie"]).partition(";")[0]
        assert get(page, "/trouble", cookie)[0] == 200


def test_a_certificate_says_who_views(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs")
    certs.make(CertificateKind.CLIENT, "nobody")
    access = Access(SystemClock(), {"client": CertificateCaller("acme", Role.VIEWER)}, NODE_NAME)
    admin = FakeAdmin()
    register(admin)

    def by(page: PageServer, name: str, path: str) -> tuple[int, str]:
        context = ssl.create_default_context(cafile=str(certs.directory / "ca.pem"))
        context.load_cert_chain(certs.directory / f"{name}.pem", certs.directory / f"{name}.key")
        return get(page, path, connection=HTTPSConnection(page.address, timeout=30, context=context))

    with page_beside(admin, access, certs.files("node", NODE_NAME).read()) as page:
        status, text = by(page, "client", "/")
        assert (status, "copy</a>" in text) == (200, True)
        assert (
            by(page, "client", "/cluster")[0] == 403
        )  # the page's own certificate is of a node, which counts for nothing
        assert by(page, "nobody", "/")[0] == 303
        assert by(page, "node", "/cluster")[0] in (303, 401, 403)
        with pytest.raises(OSError, match=r"alert|reset|closed"):  # noqa: PT012  (by the system either of them says so)
            context = ssl.create_default_context(cafile=str(certs.directory / "ca.pem"))
            get(page, "/", connection=HTTPSConnection(page.address, timeout=30, context=context))


class Stream:
    """A live stream as a browser reads it."""

    def __init__(self, page: PageServer, path: str = "/live/freshness") -> None:
        self.connection = HTTPConnection(page.address, timeout=30)
        self.connection.request("GET", path, headers={"cookie": "iscp_form=key"})
        self.answer = self.connection.getresponse()

    def next(self) -> tuple[str, str]:
        """The name and the content of the next event."""
        name = ""
        while line := self.answer.readline():
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            if line.startswith(b"data: "):
                return name, json.loads(line[6:])
        return "end", ""

    def close(self) -> None:
        self.answer.close()
        self.connection.close()


def test_a_board_stays_as_the_cluster_is() -> None:
    cluster = ViewedCluster([job_view(0)])
    with page_of(cluster) as page:
        stream = Stream(page)
        assert stream.answer.headers["content-type"].startswith("text/event-stream")
        name, content = stream.next()
        assert (name, "c0</a>" in content, "c1</a>" in content) == ("board", True, False)
        cluster.listed.append(job_view(1))
        until(lambda: "c1</a>" in stream.next()[1])
        stream.close()


def test_while_the_owner_moves_the_stream_says_so_and_goes_on() -> None:
    cluster = ViewedCluster([job_view(0)])
    with page_of(cluster) as page:
        stream = Stream(page)
        assert "c0</a>" in stream.next()[1]
        cluster.fault = Unavailable("no owner is elected")
        until(lambda: "no owner is elected" in stream.next()[1])
        cluster.fault = None
        until(lambda: "no owner is elected" not in stream.next()[1])
        stream.close()


def test_a_stream_of_what_cannot_be_shown_says_why() -> None:
    cluster = ViewedCluster([], fault=Unavailable("no owner is elected"))
    with page_of(cluster) as page:
        assert Stream(page, "/live/cluster").next() == ("fault", "no owner is elected")


def test_the_number_of_streams_is_bounded_and_places_are_free_again(page: PageServer) -> None:
    streams = [Stream(page) for _ in range(STREAMS_PER_VIEWER_MAX)]
    assert {each.next()[0] for each in streams} == {"board"}
    status, text = get(page, "/live/freshness")
    assert (status, "too many live pages" in text) == (503, True)
    assert get(page, "/")[0] == 200  # the page itself is still served
    for each in streams:
        each.close()

    def free() -> bool:
        stream = Stream(page)
        opened = stream.answer.status == 200
        stream.close()
        return opened

    until(free)


@contextmanager
def silent_connections(page: PageServer, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections that say no more than `sent`."""
    host, port = page.address.rsplit(":", 1)
    opened = []
    try:
        for _ in range(count):
            opened.append(socket.create_connection((host, int(port)), timeout=20))
            opened[-1].sendall(sent)
        yield opened
    finally:
        for each in opened:
            each.close()


SILENT = 420


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET /assets/page.css HTTP/1.1\r\nhost: localhost\r\n\r\n"])
def test_silent_connections_give_way_to_others(page: PageServer, sent: bytes) -> None:
    """Those too whose first answer is there, and that send no second request."""
    with silent_connections(page, SILENT, sent) as silent:
        assert get(page, "/")[0] == 200
        with suppress(ConnectionResetError):
            while silent[0].recv(65_536):  # the oldest was closed
                pass
        assert get(page, "/")[0] == 200


def test_connections_that_never_begin_tls_give_way_to_others(tmp_path: Path) -> None:
    """While TLS begins nobody counts a connection but the listener."""
    certs = Certs(tmp_path / "certs")
    with page_beside(FakeAdmin(), tls=certs.files("node", NODE_NAME).read()) as page:
        context = ssl.create_default_context(cafile=str(certs.directory / "ca.pem"))
        context.load_cert_chain(certs.directory / "client.pem", certs.directory / "client.key")
        with silent_connections(page, SILENT) as silent:
            assert get(page, "/", connection=HTTPSConnection(page.address, timeout=20, context=context))[0] == 200
            assert silent[0].recv(1) == b""


def test_who_takes_no_answers_is_cut_off(page: PageServer) -> None:
    """Connections that are full of answers which nobody takes would use up the page's, and its places for streams."""
    host, port = page.address.rsplit(":", 1)
    lazy = socket.socket()
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lazy.connect((host, int(port)))
    request = f"GET /assets/page.css HTTP/1.1\r\nhost: {page.address}\r\n\r\n".encode()
    lazy.setblocking(False)
    with suppress(BlockingIOError):  # neither takes anything any more
        while lazy.send(request * 1000):
            time.sleep(0.05)
    lazy.settimeout(HttpBounds().untaken_s + 20.0)
    with pytest.raises(OSError, match=r"reset|[Bb]roken"):
        lazy.sendall(request * 100_000)
    lazy.close()
    assert get(page, "/")[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: " + b"x" * (40 * HEAD_BYTES_MAX) + b"\r\n\r\n",
        b"\x16\x03\x01 garbage\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(page: PageServer, sent: bytes) -> None:
    host, port = page.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        with suppress(OSError):  # it is cut off before it has sent all
            connection.sendall(sent)
        try:
            answer = connection.recv(65_536)
        except ConnectionResetError:
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert get(page, "/")[0] == 200


def test_many_who_come_at_once_are_all_answered() -> None:
    cluster = ViewedCluster([job_view(number) for number in range(500)])
    found: list[int] = []
    with page_of(cluster) as page:
        threads = [threading.Thread(target=lambda: found.append(get(page, "/")[0])) for _ in range(40)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert found == [200] * 40


class HangingCluster(ViewedCluster):
    """A cluster that explains nothing before `end` is set."""

    end = threading.Event()

    def client(self, viewer: Viewer) -> Client:
        made: Any = super().client(viewer)

        def explain(*named: str, account: str) -> QueryExplanation:
            self.end.wait(60.0)
            return QueryExplanation(())

        made.explain = explain
        return cast(Client, made)


def test_one_viewer_who_waits_long_does_not_hold_up_another() -> None:
    cluster = HangingCluster([job_view(0)], tokens={"slow", "other"})
    with page_of(cluster, authentication=True) as page:
        waiting = [HTTPConnection(page.address, timeout=60) for _ in range(THREADS_MAX + 4)]
        for each in waiting:
            each.request("GET", f"/explain?{urlencode(JOB)}", headers={"cookie": "iscp_token=slow; iscp_form=key"})
        until(lambda: sum(viewer.token == "slow" for viewer in cluster.viewers) >= THREADS_PER_VIEWER_MAX)
        connection = HTTPConnection(page.address, timeout=10)
        assert get(page, "/", "iscp_token=other", connection)[0] == 200
        cluster.end.set()
        assert {each.getresponse().status for each in waiting} == {200}


def test_a_port_that_is_taken_ends_the_start_with_its_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = PageSettings(f"127.0.0.1:{taken.getsockname()[1]}")
        server = PageServer(NoServers(), lambda: "", settings, SystemClock(), connect=lambda *_: ViewedCluster())
        with pytest.raises(ConfigurationError) as caught:
            server.start()
    assert caught.value.field == "page.listen"


def test_the_end_of_a_node_waits_for_no_browser() -> None:
    cluster = ViewedCluster([job_view(0)])
    with page_of(cluster) as page:
        streams = [Stream(page) for _ in range(5)]
        assert {each.next()[0] for each in streams} == {"board"}
        begun_s = time.monotonic()
        page.stop(0.0)
        assert time.monotonic() - begun_s < 5.0
        assert cluster.calls[-1] == "close"
    with pytest.raises(OSError, match=r"refused"):
        get(page, "/")
