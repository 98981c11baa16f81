"""Say remedies as they are for a run: what jobs meet is worded for a cluster, whose commands a run does not have."""

from __future__ import annotations

import re

FULL = "a full refresh (--full-refresh, or full=True)"

_WORDS = {
    " (`iscp-admin notify`, `iscp-admin job wait`)": "",
    "`iscp-admin notify` has": "A refresh has",
    "Wait until it is built (`iscp-admin job wait`)": "Refresh it",
    "Wait until the job has caught up (`iscp-admin job wait`)": "Refresh it",
    "`iscp-admin job resync` builds": f"{FULL[0].upper()}{FULL[1:]} builds",
    "`iscp-admin job resync` it with": f"give it, by {FULL},",
    "`iscp-admin job resync --table` has its jobs follow it": f"name its place in the job, and build that by {FULL}",
    "`iscp-admin job resync`": FULL,
    "`job resync`": FULL,
    "; `iscp-admin job verify` compares": "; `verify()` in a program compares",
    "; verify the job to have it": "; `verify()` in a program has it",
    "`iscp-admin job resume`": "run it again",
    "Resume it once": "Run it again once",
    "resume or resync it": f"run it again, or build its target again by {FULL}",
    "resume the job": "run the job again",
    "resync the job to it": f"name that in the job, and build that by {FULL}",
    "Resync the job": f"Build its target again by {FULL}",
    "resync the job": f"build its target again by {FULL}",
    "resync its jobs": f"build its jobs' targets again by {FULL}",
    "Register the job again, on": "Give the job",
    "Register the job when": "Run the job when",
    "Register the job with": "Give the job",
    "Register the view on the first of its tables": "Name the first of its tables as the view's",
    "register the job again with": "give the job",
    "register the job with": "give the job",
    "register a job with": "give the job",
    "delete it and register it with": "give the job",
    ", and restart the nodes": ", and run the job again",
    "; see `iscp-admin job list`": "",
    " computed by ranges of it, on all nodes": " computed in one go, as a cluster would by ranges of it",
    "the node's": "the",
    "the node may": "you may",
    "the node is": "this process is",
    "the node stops": "this process ends",
    "the node died": "its process died",
    "this node cannot": "this process cannot",
    ", on every node, and restart them": ", and run the job again",
    " on every node, and restart them": ", and run the job again",
    "The cluster did not": "The run did not",
    "The cluster does not": "The run does not",
}
"""The words of a run for those of a cluster."""

_FOUND = re.compile("|".join(map(re.escape, sorted(_WORDS, key=len, reverse=True))))


def words_of_a_run(text: str) -> str:
    """Return an error or a remedy without commands that only a cluster has."""
    return _FOUND.sub(lambda found: _WORDS[found[0]], text)
