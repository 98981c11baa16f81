"""Run the process in which Spark analyzes users' SQL: that SQL may end it, and nothing else is done in it.

It gets a Connection's descriptor, over which come first the settings, and then one request after another, as JSON. It
has no keys of any storage, and reads no table.
"""

from __future__ import annotations

import json
import logging
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from iscp.model.values.errors import IscpError, Unavailable
from iscp.spark.jvm_launch import SparkSettings
from iscp.spark.session import SparkRuntime
from iscp.system.child_process import give_way
from iscp.views.analysis.separate_analysis import shape_to_json
from iscp.views.analysis.session_analysis import SessionAnalysis


def main(descriptor: int) -> None:
    with Connection(descriptor) as connection:
        settings = json.loads(connection.recv_bytes())
        logging.disable()  # what Python's side of Spark has to say of a query comes back as its error
        give_way()
        paths = {name: Path(settings[name]) for name in ("work_dir", "cache_dir")}
        try:
            runtime = SparkRuntime.start(SparkSettings(**{**settings, **paths}))
        except IscpError as error:
            connection.send_bytes(_refusal(error))
            return
        try:
            connection.send_bytes(b"{}")
            _serve(runtime, connection)
        finally:
            runtime.kill()


def _serve(runtime: SparkRuntime, connection: Connection) -> None:
    """Answer requests until nobody is there any more, or Spark is not."""
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            answer = _answer(runtime, request)
        except Unavailable:
            return  # the JVM is gone, and whoever waits finds out by this end
        except IscpError as error:
            answer = _refusal(error)
        connection.send_bytes(answer)


def _answer(runtime: SparkRuntime, request: dict[str, Any]) -> bytes:
    if "condition" in request:
        fault = SessionAnalysis(runtime.root).condition_fault(request["schema_json"], request["condition"])
        return json.dumps({"fault": fault}).encode()
    return shape_to_json(SessionAnalysis(runtime.root).query_shape(request["sql"], request["schemas"]))


def _refusal(error: IscpError) -> bytes:
    fields = {name: getattr(error, name) for name in ("message", "field", "field_is_subject", "remedy")}
    fields["code"] = int(error.code)
    return json.dumps({"error": fields}).encode()


if __name__ == "__main__":
    main(int(sys.argv[1]))
