"""Pause, resume, retry and rebuild jobs, drain nodes and take them back, as a viewer has requested by a form."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iscp.client.admin_client import Client
from iscp.core.values.errors import InvalidRequest
from iscp.page.serving.page_boards import NAME_CHARS_MAX, named_job
from iscp.page.serving.viewer_calls import Query

OUTCOMES: Mapping[str, str] = {
    "pause": "The job is paused.",
    "resume": "The job goes on.",
    "retry": "The job is tried again at once.",
    "resync": "The job's target is built again from its source; readers see the old rows until then.",
    "drain": "The node gives up its shards, and gets no others.",
    "uncordon": "The node gets shards again.",
    "unchanged": "It was so already: nothing has changed.",
}
"""The sentences after an action, by the word that stands in the address."""


def act(client: Client, verb: str, form: Query) -> str:
    """Do what the form says, and return the word of its outcome. Raises IscpError."""
    if verb in _NODE_VERBS:
        node_id = form.get("node_id", "")
        if not node_id or len(node_id) > NAME_CHARS_MAX:
            raise InvalidRequest("is missing", field="node_id", remedy="Use the page's own buttons")
        changed = _NODE_VERBS[verb](client, node_id)
    elif verb in _JOB_VERBS:
        changed = _JOB_VERBS[verb](client, form)
    else:
        raise InvalidRequest("is not a verb of the page", field="verb", remedy="Use the page's own buttons")
    return verb if changed else "unchanged"


def _pause(client: Client, form: Query) -> bool:
    job = named_job(form)
    return client.pause(job.table, job.name, account=job.account)


def _resume(client: Client, form: Query) -> bool:
    job = named_job(form)
    return client.resume(job.table, job.name, account=job.account)


def _resync(client: Client, form: Query) -> bool:
    job = named_job(form)
    return client.resync(job.table, job.name, account=job.account).created


def _drain(client: Client, node_id: str) -> bool:
    client.operator.drain(node_id)
    return True


def _uncordon(client: Client, node_id: str) -> bool:
    return client.operator.uncordon(node_id)


_JOB_VERBS: Mapping[str, Callable[[Client, Query], bool]] = {
    "pause": _pause,
    "resume": _resume,
    # A job that fails goes on at once when it is resumed.
    "retry": _resume,
    "resync": _resync,
}
_NODE_VERBS: Mapping[str, Callable[[Client, str], bool]] = {"drain": _drain, "uncordon": _uncordon}
