"""States of tables by all of their commits, as Spark's snapshots have them, for tables whose commits are all there."""

from __future__ import annotations

from iscp.delta.log.actions import key_of_action
from iscp.delta.log.commits import read_actions
from iscp.delta.log.live_files import NotReadableHere, TableState


def replay_state(uri: str, version: int) -> TableState:
    """Port LoadState, without a checkpoint. Raises NotReadableHere where a commit is gone."""
    state = TableState({}, {}, {})
    for each in range(version + 1):
        actions = read_actions(uri, each)
        if actions is None:
            raise NotReadableHere
        removed = {key_of_action(action["remove"]) for action in actions if "remove" in action}
        adds = {key: add for key, add in state.adds.items() if key not in removed}
        for action in actions:
            adds |= {key_of_action(body): body for kind, body in action.items() if kind == "add"}
            protocol, metadata = action.get("protocol", state.protocol), action.get("metaData", state.metadata)
            state = TableState(protocol, metadata, adds)
    return state
