"""Repeated reports of ends cost the store nothing (REPEAT-1), and orders on their way are not sent
twice (REPEAT-2)."""

from holdfast.controller.runtime.hosts import last_answers
from holdfast.controller.runtime.hosts.last_answers import LastAnswers
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.spec import JobSpec
from holdfast.moves.values import HostSync, HostSynced, OfferedJob, OfferedTask, TaskOffer

ONE, TWO, THREE = (TaskKey(job, 0, 1) for job in ("one", "two", "three"))


def _sync(*keys: TaskKey, incarnation: str = "first", host: str = "host") -> HostSync:
    ended = tuple((key, TaskFacts(exit_code=0)) for key in keys)
    return HostSync(host_id=host, incarnation=incarnation, ended=ended, takes=bool(ended))


def _answer(*acked: TaskKey, status: str = "ok", host: str = "host") -> HostSynced:
    return HostSynced(host_id=host, status=status, acked=acked)


def _offer(key: TaskKey) -> HostSynced:
    task = OfferedTask(key=key, attempt=1, host_id="host", devices=(), lease_ttl_seconds=300.0)
    job = OfferedJob(
        name="true", queue="default", project="default", memory_bytes=0, cpu_slots=1, tasks=1,
        spec=JobSpec(argv=("true",)),
    )  # fmt: skip
    offer = TaskOffer(task=task, job=job, secrets={}, seats=(), saved=False)
    return HostSynced(host_id="host", status="ok", offers=(offer,))


def _keys(sync: HostSync) -> list[TaskKey]:
    return [key for key, _ in sync.ended]


def test_a_repeated_end_is_acknowledged_from_memory_and_a_new_one_asked_for() -> None:
    last = LastAnswers()
    first = _sync(ONE)
    assert last.shorten(first, 0) == first
    assert last.keep_answer(first, _answer(ONE)) == _answer(ONE)
    second = _sync(ONE, TWO)
    asked = last.shorten(second, 0)
    assert _keys(asked) == [TWO]
    assert asked.takes
    answer = last.keep_answer(second, _answer(TWO))
    assert (answer.acked, answer.repeated) == ((TWO,), (ONE,))
    third = _sync(ONE, TWO)  # the answers are late: both are repeated
    asked = last.shorten(third, 0)
    assert _keys(asked) == []
    assert not asked.takes
    assert last.keep_answer(third, _answer()).repeated == (ONE, TWO)


def test_an_end_that_was_not_acknowledged_goes_to_the_store_again() -> None:
    last = LastAnswers()
    last.keep_answer(_sync(ONE, TWO), _answer(ONE))  # TWO was refused
    assert _keys(last.shorten(_sync(ONE, TWO), 0)) == [TWO]


def test_only_the_last_answer_to_the_same_incarnation_counts() -> None:
    last = LastAnswers()
    last.keep_answer(_sync(ONE), _answer(ONE))
    assert _keys(last.shorten(_sync(ONE, incarnation="second"), 0)) == [ONE]
    assert _keys(last.shorten(_sync(ONE, host="other"), 0)) == [ONE]
    last.keep_answer(_sync(THREE), _answer(status="stale"))
    assert _keys(last.shorten(_sync(ONE), 0)) == [ONE]
    last.keep_answer(_sync(ONE), _answer(ONE))
    last.keep_answer(_sync(), _answer())
    assert _keys(last.shorten(_sync(ONE), 0)) == [ONE]


def test_an_end_that_is_repeated_no_longer_is_forgotten() -> None:
    last = LastAnswers()
    last.keep_answer(_sync(ONE, TWO), _answer(ONE, TWO))
    last.keep_answer(_sync(TWO), _answer())
    assert _keys(last.shorten(_sync(ONE, TWO), 0)) == [ONE]


def test_an_order_on_its_way_is_named_to_the_store_until_a_later_report_comes() -> None:
    last = LastAnswers()
    last.keep_answer(_sync(), _offer(ONE))
    last.number += 1
    assert last.shorten(_sync(), 0).told == (ONE,)  # it came while the answer was made
    assert last.shorten(_sync(), 1).told == ()  # it came after: the answer may be lost
    assert last.shorten(_sync(incarnation="second"), 0).told == ()


def test_a_start_on_record_is_told_again_only_in_the_next_turn() -> None:
    """REPEAT-3."""
    last = LastAnswers()
    both = HostSync(host_id="host", incarnation="first", live=(ONE, TWO), started=(ONE, TWO))
    renewed = HostSynced(host_id="host", status="ok", renewed=((ONE, 300.0),))  # TWO is lost
    assert last.shorten(both, 0).started == (ONE, TWO)
    last.keep_answer(both, renewed)
    asked = last.shorten(both, 0)
    assert (asked.started, asked.live) == ((TWO,), (ONE, TWO))
    woken = HostSync(host_id="host", incarnation="first", live=(ONE,))
    last.keep_answer(woken, renewed)
    assert last.shorten(both, 0).started == (TWO,)
    last.turn += 1
    assert last.shorten(both, 0).started == (ONE, TWO)
    last.turn -= 1
    last.keep_answer(both, HostSynced(host_id="host", status="ok"))
    assert last.shorten(both, 0).started == (ONE, TWO)


def test_a_bounded_number_of_hosts_is_kept() -> None:
    last = LastAnswers()
    for number in range(last_answers.MAX_HOSTS + 1):
        last.keep_answer(_sync(ONE, host=f"host-{number}"), _answer(ONE, host=f"host-{number}"))
    assert _keys(last.shorten(_sync(ONE, host="host-0"), 0)) == [ONE]
    assert _keys(last.shorten(_sync(ONE, host="host-1"), 0)) == []
