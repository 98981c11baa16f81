"""The global checkpoint: the minimum over the jobs that count, monotonic, and cheap to maintain."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.cluster.invariants import check_checkpoint
from iscp.model.job.job_row import JobRow, JobState, JobStatus, Reason
from iscp.model.protocol.messages import SourceSeen
from iscp.model.values.ids import ShardId
from iscp.model.values.watermark import Watermark
from iscp.schedule.lag import GlobalCheckpoint, counts, resolved_at_s
from tests.fakes.loopback import job

A, B = ShardId("a"), ShardId("b")


def at(version: int, at_s: float, name: str = "j") -> JobRow:
    return job("a", name)._replace(watermark=Watermark(version, at_s))


def test_a_job_that_is_up_to_date_is_resolved_up_to_the_probe_at_its_source() -> None:
    seen = SourceSeen(A, 5, 100.0, 0.0)
    assert resolved_at_s(at(5, 40.0), seen) == 100.0
    assert resolved_at_s(at(4, 40.0), seen) == 40.0
    assert resolved_at_s(at(4, 40.0), None) == 40.0


def test_what_is_not_built_paused_or_failed_for_good_is_left_out() -> None:
    failed = JobStatus(error_code=10_001, error_msg="no").to_json()
    out = [
        job("a", "unbuilt"),
        at(3, 1.0)._replace(reason=Reason.PAUSED),
        at(3, 1.0)._replace(state=JobState.ERROR, status_json=failed),
    ]
    assert not any(counts(row) for row in out)
    checkpoint = GlobalCheckpoint()
    checkpoint.take(A, out, None)
    assert checkpoint.least_s() == inf
    checkpoint.take(A, [*out, at(3, 7.0)], None)
    assert checkpoint.least_s() == 7.0


def test_it_is_the_least_of_all_and_never_goes_back() -> None:
    checkpoint = GlobalCheckpoint(at_s=10.0)
    checkpoint.take(A, [at(1, 5.0)], None)
    assert not checkpoint.advance(), "an owner before has published a later one, and no source was probed since"
    checkpoint.take(A, [at(2, 20.0)], None)
    checkpoint.take(B, [at(2, 15.0)], None)
    assert checkpoint.advance()
    assert checkpoint.at_s == 15.0
    checkpoint.take(B, [], None)
    assert checkpoint.advance()
    assert checkpoint.at_s == 20.0
    checkpoint.take(B, [at(0, 3.0)], None)
    assert not checkpoint.advance()
    assert checkpoint.at_s == 20.0


def test_a_job_that_was_resumed_far_behind_is_listed_until_it_has_caught_up() -> None:
    """Otherwise the checkpoint would be above what the job has applied, and nobody would know."""
    checkpoint = GlobalCheckpoint()
    row, seen = at(5, 10.0), SourceSeen(A, 5, 10.0, 0.0)
    checkpoint.take(A, [row], seen)
    checkpoint.take(B, [at(1, 12.0, "k")], None)
    assert (checkpoint.advance(), checkpoint.covers(row), checkpoint.at_s) == (True, True, 10.0)
    paused = row._replace(reason=Reason.PAUSED)
    checkpoint.take(A, [paused], seen)
    checkpoint.take(B, [at(2, 50.0, "k")], None)
    assert (checkpoint.advance(), checkpoint.covers(paused), checkpoint.at_s) == (True, False, 50.0)
    checkpoint.take(A, [row], seen)
    assert (checkpoint.covers(row), checkpoint.catching_up) == (False, {A: (row.job_id,)})
    checkpoint.take(B, [at(3, 60.0, "k")], None)
    assert checkpoint.advance(), "it holds up nobody"
    half, whole = at(8, 55.0), at(9, 58.0)
    checkpoint.take(A, [half], SourceSeen(A, 9, 55.0, 1.0))
    assert not checkpoint.covers(half)
    checkpoint.take(A, [whole], SourceSeen(A, 9, 61.0, 0.0))
    assert (checkpoint.covers(whole), checkpoint.catching_up) == (True, {})


def test_a_job_that_counted_and_has_much_to_do_is_waited_for() -> None:
    """When its source moves the probe of it no longer counts, but what the job had applied until then does."""
    checkpoint = GlobalCheckpoint()
    checkpoint.take(A, [at(5, 10.0)], SourceSeen(A, 5, 100.0, 0.0))
    assert checkpoint.advance()
    checkpoint.take(A, [at(5, 10.0)], SourceSeen(A, 6, 110.0, 9.0))
    assert not checkpoint.advance()
    assert checkpoint.covers(at(5, 10.0))
    assert checkpoint.catching_up == {}


def test_a_recreated_job_is_judged_again() -> None:
    """By a resync, a split or a merge: it has another job_id."""
    checkpoint = GlobalCheckpoint()
    checkpoint.take(A, [at(5, 100.0)], None)
    assert checkpoint.advance()
    anew = at(3, 40.0)._replace(job_id="later")
    checkpoint.take(A, [anew], SourceSeen(A, 5, 100.0, 60.0))
    assert (checkpoint.covers(anew), checkpoint.catching_up) == (False, {A: ("later",)})
    checkpoint.take(A, [], None)
    assert checkpoint.catching_up == {}


def test_after_a_change_of_the_owner_the_checkpoint_waits_until_the_sources_were_probed() -> None:
    """A job that was catching up is not covered by the next owner either."""
    checkpoint = GlobalCheckpoint(at_s=100.0)
    idle, lagging = at(5, 10.0), at(5, 20.0)._replace(job_id="lagging")
    checkpoint.take(A, [idle], None)
    checkpoint.take(B, [lagging], None)
    assert checkpoint.catching_up == {A: (idle.job_id,), B: ("lagging",)}
    assert not checkpoint.advance()
    checkpoint.take(A, [idle], SourceSeen(A, 5, 130.0, 0.0))
    assert not checkpoint.advance()
    checkpoint.take(B, [lagging], SourceSeen(B, 9, 130.0, 99.0))
    assert (checkpoint.advance(), checkpoint.at_s) == (True, 130.0)
    assert checkpoint.catching_up == {B: ("lagging",)}


DAY_S = 86_400.0
NOW_S = 1_000 * DAY_S


def test_a_probe_by_a_clock_that_is_ahead_moves_nothing() -> None:
    checkpoint, early_s = GlobalCheckpoint(), NOW_S - 100.0
    checkpoint.take(A, [at(5, early_s)], SourceSeen(A, 5, NOW_S + 30 * DAY_S, 0.0), NOW_S)
    assert checkpoint.advance()
    assert checkpoint.at_s == early_s, "what was applied counts, the time of that probe does not"
    checkpoint.take(A, [at(5, early_s)], SourceSeen(A, 5, NOW_S + 1.0, 0.0), NOW_S)
    assert checkpoint.advance()
    assert checkpoint.at_s == NOW_S, "clocks of nodes may be a little apart"


def test_a_commit_of_the_future_moves_nothing() -> None:
    checkpoint, dated_s = GlobalCheckpoint(), NOW_S + 7 * DAY_S
    checkpoint.take(A, [at(5, dated_s)], None, NOW_S)
    checkpoint.take(A, [at(5, dated_s)], SourceSeen(A, 6, NOW_S, 0.0), NOW_S)
    assert not checkpoint.advance(), "of the next commit nobody knows whether it came before"
    checkpoint.take(A, [at(5, dated_s)], SourceSeen(A, 5, NOW_S - 1.0, 0.0), NOW_S)
    assert checkpoint.advance()
    assert checkpoint.at_s == NOW_S - 1.0


def test_what_an_owner_with_a_wrong_clock_took_ahead_is_taken_back() -> None:
    checkpoint = GlobalCheckpoint(NOW_S + 30 * DAY_S)
    checkpoint.take(A, [at(5, NOW_S - 50.0)], None, NOW_S)
    checkpoint.take(B, [at(5, NOW_S - 50.0)], None, NOW_S)
    assert not checkpoint.take_back(NOW_S), "nobody has looked at a source yet"
    checkpoint.take(A, [at(5, NOW_S - 50.0)], SourceSeen(A, 5, NOW_S - 2.0, 0.0), NOW_S)
    assert not checkpoint.take_back(NOW_S), "not most of them"
    checkpoint.take(B, [at(5, NOW_S - 50.0)], SourceSeen(B, 5, NOW_S - 1.0, 0.0), NOW_S)
    assert checkpoint.take_back(NOW_S)
    assert checkpoint.at_s == NOW_S
    for shard in (A, B):
        checkpoint.take(shard, [at(5, NOW_S - 50.0)], SourceSeen(shard, 5, NOW_S + 9.0, 0.0), NOW_S + 10.0)
    assert checkpoint.advance()
    assert (checkpoint.at_s, checkpoint.catching_up) == (NOW_S + 9.0, {})


def test_an_owner_whose_own_clock_is_behind_takes_nothing_back() -> None:
    checkpoint, behind_s = GlobalCheckpoint(NOW_S), NOW_S - 30 * DAY_S
    checkpoint.take(A, [at(5, NOW_S)], SourceSeen(A, 5, NOW_S + 1.0, 0.0), behind_s)
    assert not checkpoint.take_back(behind_s)
    checkpoint.take(A, [], None, behind_s)
    assert not checkpoint.take_back(behind_s)
    assert checkpoint.at_s == NOW_S


class Source:
    """A source and the jobs on it, as they really are: `commits` by version, and what was last reported of them."""

    def __init__(self, shard: ShardId) -> None:
        self.shard = shard
        self.commits = [0.0]
        self.rows = [job(str(shard), name)._replace(watermark=Watermark(0, 0.0)) for name in "jk"]
        self.seen: SourceSeen | None = None
        self.serial = 0

    def applied_up_to_s(self, row: JobRow) -> float:
        after = row.watermark.version + 1
        return self.commits[after] if 0 <= after < len(self.commits) else inf

    def happen(self, what: str, which: int, now_s: float) -> None:
        row = self.rows[which]
        match what:
            case "commit":
                self.commits.append(now_s)
            case "look":
                self.seen = SourceSeen(self.shard, len(self.commits) - 1, now_s, 0.0)
            case "apply" if not row.paused and not row.failed_for_good:
                to = len(self.commits) - 1
                self.rows[which] = row._replace(watermark=Watermark(to, self.commits[to]))
            case "pause":
                self.rows[which] = row._replace(reason=Reason.PAUSED)
            case "fail":
                failed = JobStatus(error_code=10_001, error_msg="no").to_json()
                self.rows[which] = row._replace(state=JobState.ERROR, status_json=failed)
            case "resume":
                self.rows[which] = row._replace(reason=Reason.NONE, state=JobState.COMPLETED)
            case "resync":
                self.serial += 1
                self.rows[which] = row._replace(job_id=f"{self.shard}-{self.serial}", watermark=NOTHING)
            case _:
                pass


NOTHING = Watermark(-1, 0.0)
HAPPENS = st.tuples(
    st.sampled_from(("commit", "look", "apply", "pause", "fail", "resume", "resync", "owner")),
    st.integers(0, 1),
    st.integers(0, 1),
    st.booleans(),
)


@settings(max_examples=400)
@given(st.lists(HAPPENS, min_size=10, max_size=60))
def test_whatever_happens_no_job_that_is_not_listed_is_below_the_checkpoint(
    events: list[tuple[str, int, int, bool]],
) -> None:
    """Against what is true, which is more than any owner knows; reports may be late."""
    checkpoint, sources = GlobalCheckpoint(), [Source(A), Source(B)]
    for source in sources:
        checkpoint.take(source.shard, source.rows, source.seen)
    for now_s, (what, at_source, which, told) in enumerate(events, start=1):
        source, before_s = sources[at_source], checkpoint.at_s
        if what == "owner":
            checkpoint = GlobalCheckpoint(checkpoint.at_s)
            for each in sources:
                each.seen = None
                checkpoint.take(each.shard, each.rows, None)
        for each in sources if what == "look" else (source,):
            each.happen(what, which, float(now_s))
            if told or what != "apply":
                checkpoint.take(each.shard, each.rows, each.seen)
        checkpoint.advance()
        assert checkpoint.at_s >= before_s
        for each in sources:
            check_checkpoint(checkpoint, each.rows, each.applied_up_to_s)


def test_without_a_job_that_counts_nothing_is_reported() -> None:
    checkpoint = GlobalCheckpoint()
    checkpoint.take(A, [job("a")], None)
    assert not checkpoint.advance()
    assert checkpoint.at_s == 0.0


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.floats(0, 100)), max_size=200))
def test_the_least_is_that_of_the_present_values(moves: list[tuple[int, float | None]]) -> None:
    checkpoint, model = GlobalCheckpoint(), dict[int, float]()
    for number, at_s in moves:
        checkpoint.take(ShardId(f"t{number}"), [] if at_s is None else [at(1, at_s)], None)
        if at_s is None:
            model.pop(number, None)
        else:
            model[number] = at_s
        assert checkpoint.least_s() == min(model.values(), default=inf)
        assert len(checkpoint._heap) <= 2 * len(model) + 17
