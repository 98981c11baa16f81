"""The kinds of trouble in which a dropped fence shows."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.trouble import Fault, Trouble, Wish

CROWD = Trouble(nodes=3, shards=4, length_s=40.0, version_rate=0.2)
OWNERS_CHANGE = replace(
    CROWD,
    faults={Fault.DELETE_ELECTION_KEY: 0.2, Fault.KILL: 0.05, Fault.DEAF_TO_ETCD: 0.05, Fault.PAUSE: 0.05},
    wishes={Wish.MOVE: 0.5, Wish.REBALANCE: 0.2, Wish.UNREGISTER: 0.2, Wish.REGISTER: 0.4},
    watch_lag_s=6.0,
    late=0.4,
    double=0.4,
    long_s=8.0,
)
"""Several that believe to be the owner, and messages of each on their way."""


SHARDS_MOVE = replace(
    CROWD,
    nodes=2,
    wishes={Wish.MOVE: 2.0, Wish.REBALANCE: 0.5, Wish.UPDATE: 0.5, Wish.UNREGISTER: 0.5, Wish.REGISTER: 1.0},
    late=0.3,
    double=0.5,
)
"""Shards that come back to where they were while old messages are still on their way."""


NODES_RESTART = replace(
    CROWD,
    faults={Fault.KILL: 0.3, Fault.LOSE_ETCD: 0.1, Fault.LEAVE: 0.1},
    wishes={Wish.MOVE: 0.3, Wish.REBALANCE: 0.3},
    late=0.4,
    double=0.5,
    long_s=2.0,
)
"""Lives that follow one another within the time that a message may take."""


REVOCATIONS = replace(
    CROWD,
    faults={
        Fault.CUT: 0.3,
        Fault.LOSE_ETCD: 0.2,
        Fault.DELETE_ELECTION_KEY: 0.15,
        Fault.LEAVE: 0.05,
        Fault.PAUSE: 0.05,
    },
    wishes={Wish.MOVE: 0.3, Wish.REBALANCE: 0.2},
    long_s=12.0,
)
"""Nodes that hear neither the owner nor etcd, and owners that follow each other at once."""


DEPOSITIONS = replace(
    REVOCATIONS,
    length_s=90.0,
    faults={Fault.CUT: 0.4, Fault.DELETE_ELECTION_KEY: 0.3, Fault.LOSE_ETCD: 0.2},
    long_s=15.0,
)
"""Owners that go on for long beside nodes that do not hear them, and do so still when another leads."""


REGISTRATIONS = replace(
    CROWD,
    shards=2,
    version_rate=0.6,
    faults={Fault.PAUSE: 0.05, Fault.KILL: 0.05, Fault.STALL_LOG: 0.05},
    wishes={Wish.UNREGISTER: 0.7, Wish.REGISTER: 1.5, Wish.MOVE: 0.3},
    zombie=0.5,
    late=0.2,
)
"""Jobs registered again while commits of the former registration are under way."""


SEVERAL_TABLES = replace(
    CROWD, several=True, rowless=0.3, faults={Fault.KILL: 0.05, Fault.PAUSE: 0.05}, wishes={Wish.MOVE: 0.3}, zombie=0.3
)
"""Jobs that read the next table too, whose versions often change no row."""


UNANNOUNCED = replace(CROWD, silent=0.7, stray=0.3, talkative=True)
"""Commits that most nodes never hear of, or late."""

CLOCKS = replace(CROWD, faults={Fault.LOSE_ETCD: 0.3, Fault.PAUSE: 0.1}, drift=0.15, long_s=12.0)
"""Clocks as fast and as slow as the margin allows."""


SUSPENSIONS = replace(CROWD, faults={Fault.LOSE_ETCD: 0.3, Fault.SUSPEND: 0.5}, long_s=15.0)
"""Clocks that stand still, for as long as the margins allow, at nodes that are cut off."""


FALSE_OWNERS = Trouble(
    nodes=3,
    shards=1,
    length_s=8.0,
    version_rate=0.001,
    loaded=True,
    faults={Fault.DELETE_ELECTION_KEY: 0.2},
    wishes={Wish.REGISTER: 0.6, Wish.UNREGISTER: 0.6},
    watch_lag_s=6.0,
)
"""Owners that claim again, not knowing that another leads, who has nothing to write and so does not notice."""


LISTS = replace(
    OWNERS_CHANGE, late=0.0, double=0.0, faults={Fault.KILL: 0.2, Fault.DELETE_ELECTION_KEY: 0.3}, long_s=2.0
)
"""News of the members that comes late, and owners that begin with newer ones."""


SLOW_ETCD = replace(CROWD, faults={Fault.PAUSE: 0.4, Fault.LOSE_ETCD: 0.1}, slow_etcd=0.4, long_s=15.0)
"""Answers that a stopped process reads long after they came."""


BUSY_OWNER = Trouble(nodes=5, shards=40, version_rate=0.05, wishes={Wish.UPDATE: 1.0, Wish.MOVE: 0.5}, step_s=0.2)
"""Nothing is wrong but that the owner needs more time for what comes in than there is."""


STALLED_LOG = replace(SHARDS_MOVE, faults={Fault.STALL_LOG: 0.2}, hang=0.3, long_s=20.0, late=0.0, double=0.0)
"""Shards that take long to stop, as what they have reported cannot be recorded."""


BURST = Trouble(nodes=4, shards=1_400, length_s=10.0, version_rate=0.0001, step_s=0.02, loaded=True)
"""Many tables at once, and an owner that takes in few answers in the time in which all could come."""


TOGETHER = Trouble(nodes=4, shards=6, version_rate=0.05, loaded=True, together=True)
"""All nodes start at one moment."""


RESTORES = replace(
    CROWD, faults={Fault.RESTORE_ETCD: 0.06, Fault.LOSE_ETCD: 0.1, Fault.KILL: 0.05, Fault.CUT: 0.1}, long_s=6.0
)
"""An etcd that forgets what has happened since its backup, beside nodes that do not hear of it at once."""


LOSSES = replace(CROWD, faults={Fault.KILL: 0.1, Fault.DELETE_ELECTION_KEY: 0.1}, lost_events=0.3, long_s=3.0)
"""Nodes that do not hear of others that come and go, nor of the end of an owner."""


TTLS = replace(REVOCATIONS, ttl_spread=2.0, grants_more=0.5)
"""Nodes that may write for longer than others after nobody has heard of them."""


PAUSES = replace(
    CROWD, version_rate=0.3, wishes={Wish.PAUSE: 0.3, Wish.RESUME: 0.3, Wish.RESYNC: 0.1}, ruin=0.1, hang=0.1
)
"""Jobs that stand still for long while the others go on."""


BUSY_ENGINES = replace(CROWD, version_rate=0.6, faults={Fault.LOSE_ETCD: 0.3}, busy=0.5, hang=0.1, long_s=8.0)
"""Nodes that register again before all of them has noticed that they had to stop."""

BUILDS = replace(
    CROWD,
    shards=3,
    version_rate=0.1,
    builds=True,
    vacuum=0.02,
    faults={Fault.KILL: 0.1, Fault.DELETE_ELECTION_KEY: 0.1, Fault.LOSE_ETCD: 0.05, Fault.DEAF_TO_ETCD: 0.1},
    wishes={
        Wish.SPLIT_BUILD: 0.8,
        Wish.MERGE_BUILD: 0.8,
        Wish.REGISTER: 0.5,
        Wish.UNREGISTER: 0.2,
        Wish.DRAIN: 0.1,
        Wish.UNCORDON: 0.2,
        Wish.PAUSE: 0.1,
    },
    fail=0.1,
    zombie=0.2,
    late=0.2,
    double=0.2,
    drop=0.05,
    lost_answer=0.05,
    watch_lag_s=2.0,
    long_s=4.0,
)
"""First snapshots that are built by ranges while these are cut and put together, and owners and nodes come and go."""


CREATIONS = replace(
    BUILDS,
    vacuum=0.3,
    faults={Fault.DELETE_ELECTION_KEY: 0.1, Fault.KILL: 0.05},
    drop=0.0,
    lost_answer=0.2,
)
"""The tasks of a build are being written when an answer is lost, or another owner comes."""


FOREIGN_CODE = replace(CROWD, version_rate=0.5, poison=0.2)
"""Consumers of others, which answer and raise what cannot be."""

SPLITS = replace(
    CROWD,
    shards=2,
    version_rate=0.4,
    wishes={Wish.SPLIT: 0.3, Wish.MERGE: 0.3, Wish.MOVE: 0.2},
    faults={Fault.KILL: 0.05, Fault.LOSE_ETCD: 0.05},
    zombie=0.2,
    hang=0.05,
)
"""Tables that are split and merged while commits of their former ranges are under way."""


WRONG_TIMES = replace(CROWD, future=0.2, fail=0.2)
"""Commits that are dated weeks ahead."""


WRONG_CLOCKS = replace(CROWD, jumps=0.3, long_s=15.0)
"""Clocks that are weeks ahead for a while, that of the owner too."""


LOST_PUTS = replace(REGISTRATIONS, lost_puts=0.2)
"""Writes of the job log that land late, or never, and that nobody hears of."""


BUSY_FORMER_OWNERS = replace(
    CROWD,
    shards=6,
    version_rate=0.5,
    faults={Fault.LOSE_ETCD: 0.4},
    wishes={Wish.UPDATE: 2.0, Wish.MOVE: 1.0},
    step_s=0.15,
    long_s=12.0,
)
"""Owners that are cut off from etcd, and have much to do before they come to hear of it."""
