"""Runs that once failed: what was wrong then stays repaired."""

from __future__ import annotations

REGRESSIONS: dict[int, str] = {
    47: "a build that an owner had not written down when its term ended was not requested again",
    377: "what was due while a process stood still came before the tick that says what could not be probed",
    116: "two nodes that nobody could reach registered again in turns, and each time all placing waited for them",
    549: "the same with more shards",
    991: "a status that the owner had in memory when its term ended was not reported again, as the source stayed idle",
    1028: "the same after an iteration more",
    443: "what waited until all nodes were heard was never reported, as the last of them was replaced by a new life",
    4148: "a shard was placed while a second copy of it was still stopping",
    4918: "an owner that was late asked for a Sync again and again at once, as two sums were rounded differently",
    23640: "what had stopped by itself was believed to run, as an answer from before a Sync came after it",
    1054: "a node was given up on and dispatched to in one step",
    373: "a node was blamed for the time in which it waited for its reports to be recorded",
    652: "an epoch that a restored etcd gave twice was not noticed, as another life was seen between the two",
    2620: "a node whose lease a restored etcd had, and its key not, did not register again: it had not seen itself",
    14080: "an owner that found etcd restored while its watch went on took nothing that came by that for new",
    15860: "a job of several tables that had failed for good was reported again with the error of an earlier attempt",
    1314: "the mark of a build stayed in etcd, as its job was published while an owner began, and had no plan any more",
    49403: "a node's epoch was in a backup, and its record was not, so that it was not noticed that etcd was restored",
    60186: "a node that a restored etcd brought back took a dispatch from before its lease had ended",
    76715: "an owner revoked again and again a life that a restored etcd had not, and never saw the one after it",
    75178: "the checkpoint passed jobs that were still wanted, as they were dropped before their progress was taken in",
    37545: "an owner that had no build left did not notice that a restored etcd had builds again",
}
"""Seed → what it found. A seed means what it meant as long as nothing is drawn otherwise; the mutants of
`tests/simulation/mutants.py` and the unit tests of the machines hold the same."""
