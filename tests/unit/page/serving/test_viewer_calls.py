"""In whose name the page calls: never in its node's own."""

from __future__ import annotations

import json

from iscp.adapters.grpc.channel.call_metadata import CALLER_KEY
from iscp.page.serving.viewer_calls import Viewer, metadata_of_viewer

PEER = "ipv4:10.0.0.9:5"


def test_over_tls_each_call_says_for_whom_it_is_made() -> None:
    """The channel shows the node's certificate: a call that says nothing would have a node's rights."""
    for viewer in (Viewer(peer=PEER), Viewer("token", peer=PEER), Viewer("", frozenset({"ben", "ana"}), PEER)):
        said = [value for key, value in metadata_of_viewer(viewer, said=True) if key == CALLER_KEY]
        assert [json.loads(each) for each in said] == [{"names": sorted(viewer.names), "peer": PEER}]


def test_a_token_goes_along_and_without_tls_nothing_else() -> None:
    assert metadata_of_viewer(Viewer("token", peer=PEER), said=False) == (("authorization", "Bearer token"),)
    assert metadata_of_viewer(Viewer(peer=PEER), said=False) == ()


def test_viewers_differ_by_what_they_show_and_not_by_where_they_are() -> None:
    scopes = {
        Viewer("a").scope,
        Viewer("b").scope,
        Viewer("", frozenset({"a"})).scope,
        Viewer("a", frozenset({"a"})).scope,
        Viewer("", frozenset({"a", "b"})).scope,
    }
    assert len(scopes) == 5
    assert Viewer("a", peer=PEER).scope == Viewer("a").scope
    assert "token" not in Viewer("token").scope
