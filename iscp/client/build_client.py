"""The part of the Python client that speaks of builds."""

from __future__ import annotations

from iscp.client.channel.silent_calls import Caller, listing
from iscp.client.codec.api_messages import JOB_NAME, builds_from_wire
from iscp.client.codec.message_codec import to_request
from iscp.model.api.api_requests import JobName
from iscp.model.build.build_progress import BuildView
from iscp.wire.v1 import builds_pb2 as pb
from iscp.wire.v1 import builds_pb2_grpc as pb_grpc


class BuildClient:
    """`client.builds`: the first snapshots of large tables, which all nodes build. Raises TableNotFound.

    A node that is too old to build says PermanentError.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._builds = pb_grpc.BuildsStub(caller.channel)

    def list(self, table: str = "") -> list[BuildView]:
        """The builds of a table, or (empty) of all, what is being built first."""
        request = to_request(pb.GetBuildsRequest, table=table)
        return builds_from_wire(self._caller.call(listing(self._builds.GetBuilds), request))

    def abort(self, table: str, name: str = "", *, account: str = "") -> int:
        """Pause a job that is being built, or (empty) all of the table, of all accounts; return how many tasks end by
        that.

        The staged rows are retained until it is resumed. Raises JobNotFound; InvalidRequest where nothing is to be
        built.
        """
        job = JOB_NAME.to_wire(JobName(table, name, account))
        request = to_request(pb.AbortBuildRequest, job=job)
        return int(self._caller.call(self._builds.AbortBuild, request, changes=True).tasks)

    def prioritize(self, table: str) -> bool:
        """Build the table before all others that wait; False where it is its turn already, or its turn is next."""
        request = to_request(pb.PrioritizeBuildRequest, table=table)
        return bool(self._caller.call(self._builds.PrioritizeBuild, request, changes=True).changed)

    def split(self, table: str, *, range_id: int = 0) -> int:
        """Cut a range of what is to be built in two, or (0) all of them; how many ranges are still to be built then."""
        return self._reshard(False, table, range_id)

    def merge(self, table: str, *, range_id: int = 0) -> int:
        """Put a range together with its other half, or (0) all pairs of the smallest; how many there are then."""
        return self._reshard(True, table, range_id)

    def _reshard(self, merge: bool, table: str, range_id: int) -> int:
        request = to_request(pb.ReshardBuildRequest, merge=merge, table=table, range_id=range_id)
        return int(self._caller.call(self._builds.ReshardBuild, request, changes=True).ranges)
