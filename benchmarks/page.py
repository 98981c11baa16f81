"""Time and size of the page's boards over many jobs, behind a real gRPC server: `python -m benchmarks.page [--json]`.

The services are a fake's, in memory. `answer_ms` are medians (`worst_ms`: the slowest) of whole requests by HTTP, while
lists are held and fetched behind the viewer; `first_ms` is the first request of a board. The first one of all waits for
the viewer's list.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from http.client import HTTPConnection

import click

from benchmarks.progress import report_progress
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.server.page.page_server import PageServer
from tests.fakes.admin import FakeAdmin
from tests.fakes.served_page import page_beside

BOARDS: Mapping[str, str] = {
    "freshness": "/",
    "last page": "/?page=100000",
    "filtered": "/?words=orders_77",
    "time line": "/timeline",
    "trouble": "/trouble",
    "cluster": "/cluster",
    "lineage": "/lineage",
    "one lineage": "/lineage?place=/lake/copies/orders_77",
}


@dataclass(frozen=True, slots=True)
class BoardFigures:
    """One board: milliseconds of a request, and bytes of its answer."""

    board: str
    first_ms: float
    answer_ms: float
    worst_ms: float
    kib: float


def request(page: PageServer, path: str) -> tuple[float, int]:
    """Return the milliseconds and bytes of one answer."""
    begun_s = time.perf_counter()
    connection = HTTPConnection(page.address, timeout=120)
    connection.request("GET", path, headers={"accept": "text/html"})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"{path} was answered with {answer.status}")
    return (time.perf_counter() - begun_s) * 1000, len(content)


def measure(jobs: int, requests: int, pause_s: float) -> list[BoardFigures]:
    admin = FakeAdmin()
    for begin in range(0, jobs, 1000):
        admin.register([_registration(number) for number in range(begin, min(jobs, begin + 1000))])
    found = []
    with page_beside(admin) as page:
        for board, path in BOARDS.items():
            first_ms, size = request(page, path)
            times = []
            for _ in range(requests):
                time.sleep(pause_s)
                times.append(request(page, path)[0])
            figures = BoardFigures(board, first_ms, statistics.median(times), max(times), size / 1024)
            report_progress("page", **asdict(figures))
            found.append(figures)
    return found


def _registration(number: int) -> RegisterRequest:
    consumer = {"kind": "replica", "target": f"/lake/copies/orders_{number}", "key": ["id"]}
    spec = {"iteration": {"consumer": consumer}, "target_lag": 60}
    return RegisterRequest(JobName(f"/lake/orders_{number}", "copy", "acme"), json.dumps(spec))


@click.command()
@click.option("--jobs", type=int, default=10_000)
@click.option("--requests", type=int, default=30, help="of each board")
@click.option("--pause-s", type=float, default=0.2, help="between two requests")
@click.option("--json", "as_json", is_flag=True)
def main(jobs: int, requests: int, pause_s: float, as_json: bool) -> None:
    found = measure(jobs, requests, pause_s)
    if as_json:
        print(json.dumps({"jobs": jobs, "boards": [asdict(each) for each in found]}))
        return
    for each in found:
        print(
            f"{each.board:10}  first {each.first_ms:7.1f} ms  median {each.answer_ms:6.1f} ms  "
            f"worst {each.worst_ms:6.1f} ms  {each.kib:6.1f} KiB"
        )


if __name__ == "__main__":
    main()
