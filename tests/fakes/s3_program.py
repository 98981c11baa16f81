"""An S3 with conditional writes, on the loopback interface: moto's, whose tables are gone when it ends.

Arguments: the port, the seconds that it waits before each answer, and, if it is not to be as it should, how:
`ignore-conditions`, to take every write whatever its conditions, as stores do that do not know them; `lose-answers`, to
say of each file's first conditional write that it failed when it is done; `keep-rows`, to answer 403 to whoever reads
a file in a directory `data`. Moto looks and then writes; here one write
follows the other: S3's own promise is that one wins.

`FAKE_S3_KEYS`, JSON, says by which access key, and with which token, each bucket is reached; by any other it answers
403. A bucket that is not in it is everybody's. Signatures are not looked at, and anybody makes buckets.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable
from threading import Lock
from typing import TYPE_CHECKING, Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_KEY = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/")


def is_refused(environ: WSGIEnvironment, keys: dict[str, list[str]]) -> bool:
    """Whether a request is made by another key, or token, than its bucket's."""
    bucket, _, rest = environ["PATH_INFO"].lstrip("/").partition("/")
    if bucket not in keys or (environ["REQUEST_METHOD"] == "PUT" and not rest):
        return False
    signed = _KEY.match(environ.get("HTTP_AUTHORIZATION", ""))
    return keys[bucket] != [signed[1] if signed else "", environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "")]


class QuietHandler(MotoRequestHandler):
    protocol_version = "HTTP/1.1"  # clients keep their connections

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002  (the name is werkzeug's)
        pass


def main(port: int, delay_s: float, fault: str) -> None:
    moto = DomainDispatcherApplication(create_backend_app)
    one_at_a_time = Lock()
    answers_lost = set[str]()
    keys = json.loads(os.environ.get("FAKE_S3_KEYS", "{}"))

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        time.sleep(delay_s)
        if is_refused(environ, keys):
            start_response("403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(DENIED)))])
            return [b"" if environ["REQUEST_METHOD"] == "HEAD" else DENIED]
        if fault == "keep-rows" and environ["REQUEST_METHOD"] == "GET" and "/data/" in environ["PATH_INFO"]:
            start_response("403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(DENIED)))])
            return [DENIED]
        if fault == "ignore-conditions":
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return moto(environ, start_response)  # type: ignore[no-any-return]
        with one_at_a_time:
            path = environ["PATH_INFO"]
            if fault == "lose-answers" and "HTTP_IF_NONE_MATCH" in environ and path not in answers_lost:
                answers_lost.add(path)
                list(moto(environ, lambda *_: None))
                start_response("503 Slow Down", [("Content-Length", "0")])
                return []
            return moto(environ, start_response)  # type: ignore[no-any-return]

    make_server("127.0.0.1", port, answer, threaded=True, request_handler=QuietHandler).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), *(sys.argv[3:] or [""]))
