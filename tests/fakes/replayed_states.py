"""States of tables by all of their commits, as Spark's snapshots have them, for tables whose commits are all there."""

from __future__ import annotations

from iscp.adapters.delta.log.commits import read_actions
from iscp.adapters.delta.log.live_files import NotReadableHere, TableState


def replay_state(uri: str, version: int) -> TableState:
    """Port LoadState, without a checkpoint. Raises NotReadableHere where a commit is gone."""
    state = TableState({}, {}, {})
    for each in range(version + 1):
        actions = read_actions(uri, each)
        if actions is None:
            raise NotReadableHere
        removed = {action["remove"]["path"] for action in actions if "remove" in action}
        adds = {path: add for path, add in state.adds.items() if path not in removed}
        for action in actions:
            adds |= {body["path"]: body for kind, body in action.items() if kind == "add"}
            protocol, metadata = action.get("protocol", state.protocol), action.get("metaData", state.metadata)
            state = TableState(protocol, metadata, adds)
    return state
