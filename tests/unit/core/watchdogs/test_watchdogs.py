"""The five watchdogs, rule by rule, with scripted samples and an injected clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise

import pytest

from holdfast.core.facts import Trip
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.watchdogs import (
    GpuReading,
    Reading,
    Rearmed,
    Suspect,
    TaskWatch,
    TreeReading,
    Verdict,
)
from holdfast.core.watchdogs.sections import IDLE_SECTION
from holdfast.core.watchdogs.signals import MB, Signal, extend_window, judge, open_window
from holdfast.core.watchdogs.watch import ends_hangs
from holdfast.errors import ValidationError

Probe = Callable[[float], Reading]


def cpu(percent: float = 0.0, io_mb_s: float = 0.0, rss_mb_s: float = 0.0) -> Probe:
    """A process tree that works at these rates."""
    return lambda at: Reading(
        at=at,
        tree=TreeReading(
            cpu_seconds=at * percent / 100,
            io_bytes=int(at * io_mb_s * MB),
            rss_bytes=int((100 + at * rss_mb_s) * MB),
        ),
    )


def gpu(
    percent: float | None = 0.0,
    mb_s: float = 0.0,
    box_wide: bool = False,
    tree: Probe | None = None,
) -> Probe:
    """One device at this utilisation whose memory grows at this rate, over an idle tree."""

    def read(at: float) -> Reading:
        memory = None if percent is None else int((1000 + at * mb_s) * MB)
        one = GpuReading(
            index=0, utilisation_percent=percent, memory_bytes=memory, box_wide=box_wide
        )
        return Reading(at=at, gpus=(one,), tree=(tree or cpu())(at).tree)

    return read


def unreadable(at: float) -> Reading:
    return Reading(at=at)


class Driver:
    """Runs a watch as the agent does: ticks when woken, samples when wished, and writes down what
    is said."""

    def __init__(
        self, settings: WatchSettings, probe: Probe, gpus: int = 0, owns_whole_box: bool = False
    ) -> None:
        self.watch = TaskWatch(settings, gpus=gpus)
        self.probe, self.owns = probe, owns_whole_box
        self.now = 0.0
        self.said: list[tuple[float, Verdict]] = []
        self.sampled: list[float] = []
        self.watch.started(0.0)

    def run(self, until: float) -> Driver:
        while self.now < until and self.watch.trip is None:
            wish = self.watch.wants_sample()
            wake = min(self.watch.wake_at(self.now), until, wish.at if wish else until)
            self.now = max(self.now, wake)
            self.tick()
            wish = self.watch.wants_sample()
            if wish is not None and wish.at <= self.now:
                self.sampled.append(self.now)
                self.watch.sample(self.now, self.probe(self.now), owns_whole_box=self.owns)
                self.tick()
        return self

    def tick(self) -> None:
        self.said += [(self.now, verdict) for verdict in self.watch.tick(self.now)]

    def beat(self, **fields: object) -> Driver:
        self.watch.beat(self.now, **fields)  # type: ignore[arg-type]  # plain words stand for the typed value in a test
        self.tick()
        return self

    @property
    def trip(self) -> tuple[float, int] | None:
        trip = self.watch.trip
        return None if trip is None else (self.said[-1][0], trip.exit_code)

    def kinds(self) -> list[str]:
        return [type(verdict).__name__ for _, verdict in self.said]


OFF = WatchSettings(stall_watch=False, health_watch="off")
STALL = WatchSettings(health_watch="off")
HEALTH = WatchSettings(stall_watch=False)


# ---- time limit, lost lease, operator stop, and the order of all


def test_time_limit_trips_on_the_wall_clock_with_75() -> None:
    driver = Driver(
        WatchSettings(time_limit_seconds=100.0, stall_watch=False), cpu(percent=100)
    ).run(500)
    assert driver.trip == (100.0, 75)
    assert "time limit is 100 s" in driver.watch.trip.reason


def test_no_time_limit_before_the_start_and_none_when_off() -> None:
    watch = TaskWatch(WatchSettings(time_limit_seconds=1.0), gpus=0)
    assert watch.tick(50.0) == []
    assert Driver(OFF, cpu()).run(1e5).trip is None


def test_new_settings_hold_at_once() -> None:
    driver = Driver(OFF, cpu()).run(50)
    driver.watch.change_settings(50.0, WatchSettings(time_limit_seconds=60.0))
    assert driver.run(500).trip == (60.0, 75)


def test_other_work_of_a_task_is_watched_anew() -> None:
    """Its time counts from its own start, and no silence of the work before is held against it."""
    settings = WatchSettings(
        time_limit_seconds=60.0, stall_timeout_seconds=5.0, silence_limit_seconds=20.0
    )
    watch = TaskWatch(settings, gpus=0)
    watch.started(0.0)
    watch.beat(1.0, step=7)
    assert [type(verdict) for verdict in watch.tick(10.0)] == [Suspect]
    watch.renew(30.0, 29.0, settings)
    assert (watch.suspected, watch.last_beat, watch.tick(30.5)) == (False, None, [])
    watch.beat(31.0)
    watch.tick(41.0)
    [trip] = [verdict for verdict in watch.tick(51.0) if isinstance(verdict, Trip)]
    assert trip.exit_code == 76

    watch = TaskWatch(settings, gpus=0)
    watch.started(0.0)
    watch.lease_lost(1.0)
    watch.renew(2.0, 2.0, settings)
    [trip] = [verdict for verdict in watch.tick(2.0) if isinstance(verdict, Trip)]
    assert trip.exit_code == 77  # an order from outside stands


def test_lost_lease_is_77_and_operator_stop_79_at_once_even_before_the_start() -> None:
    watch = TaskWatch(OFF, gpus=0)
    watch.lease_lost(3.0)
    assert [v.exit_code for v in watch.tick(3.0) if isinstance(v, Trip)] == [77]
    watch = TaskWatch(OFF, gpus=0)
    watch.stop_by_operator(3.0, "queue gpu was switched off")
    [trip] = watch.tick(3.0)
    assert isinstance(trip, Trip)
    assert (trip.exit_code, "queue gpu was switched off" in trip.reason) == (79, True)


@pytest.mark.parametrize("present", [(79, 77, 75, 76), (77, 75, 76), (75, 76), (76,)])
def test_of_several_trips_one_is_said_in_a_fixed_order(present: tuple[int, ...]) -> None:
    """TRIP-2."""
    limit = 1800.0 if 75 in present else None
    watch = TaskWatch(WatchSettings(time_limit_seconds=limit, health_watch="off"), gpus=0)
    watch.started(0.0)
    watch.beat(0.0)
    for now in range(0, 1800, 10):
        assert not [v for v in watch.tick(now) if isinstance(v, Trip)]
    if 77 in present:
        watch.lease_lost(1800.0)
    if 79 in present:
        watch.stop_by_operator(1800.0, "off")
    trips = [v for v in watch.tick(1800.0) if isinstance(v, Trip)]
    assert [t.exit_code for t in trips] == [present[0]]
    assert watch.tick(1801.0) == []


def test_a_stall_comes_before_gpu_health_in_the_same_tick() -> None:
    """TRIP-2: one sample completes both."""
    settings = WatchSettings(
        health_window_seconds=122.0, health_sample_interval_seconds=1.0, stall_timeout_seconds=120.0
    )
    watch = TaskWatch(settings, gpus=1)
    watch.started(0.0)
    watch.beat(0.0)
    for now in range(1, 122):
        watch.sample(now, gpu()(now))
        assert not [v for v in watch.tick(now) if isinstance(v, Trip)]
    watch.sample(122.0, gpu()(122.0))
    assert (
        watch._state.health.sample(gpu()(123.0), settings, 1, False)[1] is not None
    )  # it would have tripped
    assert [v.exit_code for v in watch.tick(122.0) if isinstance(v, Trip)] == [76]


# ---- stall


def test_a_wedge_is_suspected_confirmed_and_tripped_with_76() -> None:
    driver = Driver(STALL, cpu()).run(10).beat(step=7).run(1000)
    assert driver.trip == (
        10 + 120 + 2,
        76,
    )  # three samples one second apart, the first at the timeout
    assert driver.kinds() == ["Suspect", "Trip"]
    assert driver.sampled == [129, 130, 131, 132]  # nothing was read before, but one baseline
    assert "no beat for 122 s" in driver.watch.trip.reason
    assert driver.watch.trip.evidence["signal"] == "idle"


def test_nothing_is_suspected_before_the_first_beat() -> None:
    """STALL-1."""
    driver = Driver(STALL, cpu()).run(100_000)
    assert (driver.trip, driver.said, driver.sampled) == (None, [], [])


def test_beats_in_time_cost_no_sample() -> None:
    driver = Driver(STALL, cpu())
    for _ in range(50):
        driver.beat().run(driver.now + 100)
    assert (driver.said, driver.sampled) == ([], [])


@pytest.mark.parametrize("probe", [cpu(percent=50), cpu(io_mb_s=5), cpu(rss_mb_s=20)])
def test_a_busy_tree_rearms_and_is_logged_and_the_silence_limit_decides(probe: Probe) -> None:
    """STALL-3."""
    driver = Driver(STALL, probe).beat().run(1799)
    assert driver.trip is None
    assert driver.kinds()[:4] == ["Suspect", "Rearmed", "Suspect", "Rearmed"]
    times = [at for at, verdict in driver.said if isinstance(verdict, Suspect)]
    assert all(later - earlier >= 120 for earlier, later in pairwise(times))
    assert driver.run(5000).trip == (1800.0, 76)
    assert "silence limit of 1800 s" in driver.watch.trip.reason
    assert "although its last sample found it busy" in driver.watch.trip.reason


def test_only_where_no_signal_could_be_read_the_silence_limit_says_so() -> None:
    driver = Driver(STALL, unreadable).beat().run(5000)
    assert driver.trip == (1800.0, 76)
    assert "no signal could decide (its processes cannot be measured)" in driver.watch.trip.reason


def test_busy_in_the_last_of_three_samples_rearms() -> None:
    """STALL-2: two idle samples are not three."""

    def wakes_up(at: float) -> Reading:
        return (
            cpu()(at)
            if at < 122
            else Reading(at=at, tree=TreeReading(cpu_seconds=1, io_bytes=0, rss_bytes=100 * MB))
        )

    driver = Driver(STALL, wakes_up).beat().run(130)
    assert driver.trip is None
    assert driver.kinds() == ["Suspect", "Rearmed"]


def test_unknown_neither_kills_nor_rearms_and_asks_on_slowly_until_the_limit() -> None:
    """SIGNAL-1."""
    driver = Driver(STALL, unreadable).beat().run(1799.9)
    assert driver.trip is None
    assert driver.kinds() == ["Suspect"]
    assert 300 < len(driver.sampled) < 350  # every 5 s
    assert driver.run(2000).trip == (1800.0, 76)
    assert "cannot be measured" in driver.watch.trip.reason


def test_signals_that_become_readable_confirm_then() -> None:
    driver = Driver(STALL, lambda at: unreadable(at) if at < 300 else cpu()(at)).beat().run(1000)
    assert driver.trip is not None
    assert 301 < driver.trip[0] < 315


def test_one_unknown_among_the_samples_starts_the_count_again() -> None:
    driver = Driver(STALL, lambda at: unreadable(at) if at == 121 else cpu()(at)).beat().run(1000)
    assert driver.trip is not None
    assert driver.trip[0] > 122


def test_a_beat_during_the_confirmation_ends_it() -> None:
    driver = Driver(STALL, cpu()).beat().run(121).beat()
    assert driver.kinds() == ["Suspect", "Rearmed"]
    assert not driver.watch.suspected
    assert driver.run(240).trip is None
    assert driver.run(1000).trip == (121 + 122, 76)


def test_a_reading_from_before_the_beat_confirms_nothing() -> None:
    driver = Driver(STALL, cpu()).beat().run(121).beat()
    for at in (119.0, 120.0, 121.0, 120.5):
        driver.watch.sample(121.5, cpu()(at))
    driver.now = 121.5
    driver.tick()
    assert driver.trip is None


def test_a_probe_that_hung_since_before_the_beat_is_no_baseline() -> None:
    watch = TaskWatch(STALL, gpus=0)
    watch.started(0.0)
    for now in range(10, 131, 5):
        if now == 10:
            watch.beat(10.0)
        watch.tick(now)
    assert watch.suspected
    for at in (5.0, 130.0, 131.0, 132.0):
        watch.sample(max(at, 130.0), cpu()(at))
    assert watch.tick(132.0) == []  # a baseline and two samples
    watch.sample(133.0, cpu()(133.0))
    assert [v.exit_code for v in watch.tick(133.0) if isinstance(v, Trip)] == [76]


def test_stall_watch_off_disables_silence_and_sections_too() -> None:
    driver = Driver(OFF, cpu()).beat().run(5000).beat(section="eval", timeout=1.0).run(9000)
    assert (driver.trip, driver.said, driver.sampled) == (None, [], [])


def test_each_limit_can_be_off_by_itself() -> None:
    no_silence = WatchSettings(health_watch="off", silence_limit_seconds=None)
    assert Driver(no_silence, cpu(percent=100)).beat().run(20_000).trip is None
    no_timeout = WatchSettings(health_watch="off", stall_timeout_seconds=None)
    driver = Driver(no_timeout, cpu()).beat().run(20_000)
    assert (driver.trip, driver.sampled) == ((1800.0, 76), [])


def test_a_short_timeout_still_takes_its_samples() -> None:
    quick = WatchSettings(
        health_watch="off", stall_timeout_seconds=0.5, stall_sample_interval_seconds=0.1
    )
    driver = Driver(quick, cpu()).beat().run(10)
    assert driver.trip == (pytest.approx(0.7), 76)
    shorter = WatchSettings(
        health_watch="off", stall_timeout_seconds=0.1, stall_sample_interval_seconds=1.0
    )
    assert Driver(shorter, cpu()).beat().run(10).trip == (pytest.approx(3.1), 76)


# ---- GPU tasks


def test_a_gpu_task_spinning_on_its_cpu_is_not_working() -> None:
    """SIGNAL-3: a collective that waits for a dead peer."""
    driver = Driver(STALL, gpu(0, tree=cpu(percent=100)), gpus=1).beat().run(1000)
    assert driver.trip == (122.0, 76)


@pytest.mark.parametrize(
    "probe",
    [gpu(80), gpu(0, mb_s=6000), gpu(0, tree=cpu(io_mb_s=5)), gpu(0, tree=cpu(rss_mb_s=20))],
)
def test_a_gpu_task_that_computes_or_moves_data_is_working(probe: Probe) -> None:
    driver = Driver(STALL, probe, gpus=1).beat().run(1000)
    assert driver.trip is None
    assert "Rearmed" in driver.kinds()


@pytest.mark.parametrize(("percent", "trips"), [(5.0, True), (5.1, False)])
def test_five_percent_is_idle(percent: float, trips: bool) -> None:
    assert (Driver(STALL, gpu(percent), gpus=1).beat().run(1000).trip is not None) is trips


def test_an_idle_cpu_does_not_make_up_for_an_unreadable_gpu() -> None:
    driver = Driver(STALL, gpu(None), gpus=1).beat().run(1799)
    assert driver.trip is None


def test_a_box_wide_reading_counts_only_for_who_owns_the_box() -> None:
    """SIGNAL-2, both ways: it neither confirms nor re-arms."""
    assert Driver(STALL, gpu(0, box_wide=True), gpus=1).beat().run(1799).kinds() == ["Suspect"]
    assert Driver(STALL, gpu(90, box_wide=True), gpus=1).beat().run(1799).kinds() == ["Suspect"]
    owner = Driver(STALL, gpu(0, box_wide=True), gpus=1, owns_whole_box=True).beat().run(1799)
    assert owner.trip == (122.0, 76)


def test_a_device_missing_from_the_readings_is_unknown() -> None:
    assert Driver(STALL, gpu(0), gpus=2).beat().run(1799).kinds() == ["Suspect"]


def test_memory_is_weighed_per_device_and_in_sum() -> None:
    def two(at: float, a: int, b: int) -> Reading:
        pairs = ((0, a), (1, b))
        return Reading(
            at=at,
            gpus=tuple(
                GpuReading(index=i, utilisation_percent=0.0, memory_bytes=m * MB) for i, m in pairs
            ),
        )

    settings = WatchSettings(gpu_memory_moving_mb=100.0)
    window = extend_window(open_window(two(0, 0, 0), 2, False), two(1, 60, 60), 2, False)
    assert judge(window, settings, 2).signal is Signal.BUSY
    window = extend_window(open_window(two(0, 0, 120), 2, False), two(1, 120, 0), 2, False)
    assert judge(window, settings, 2).signal is Signal.BUSY
    window = extend_window(open_window(two(0, 0, 0), 2, False), two(1, 50, 50), 2, False)
    assert judge(window, settings, 2).signal is Signal.IDLE


def unified(rss_mb_s: float = 0.0, readable: bool = True) -> Probe:
    """A device that tells its utilisation but not its memory, over a tree that may be read."""

    def read(at: float) -> Reading:
        one = GpuReading(index=0, utilisation_percent=0.0, memory_bytes=None)
        tree = cpu(rss_mb_s=rss_mb_s)(at).tree if readable else TreeReading()
        return Reading(at=at, gpus=(one,), tree=tree)

    return read


def test_the_trees_memory_stands_for_a_devices_that_cannot_be_read() -> None:
    """SIGNAL-5."""
    assert Driver(STALL, unified(), gpus=1).beat().run(1799).trip == (122.0, 76)
    assert Driver(HEALTH, unified(), gpus=1).run(5000).trip == (1200.0, 78)
    assert Driver(HEALTH, unified(rss_mb_s=20), gpus=1).run(5000).trip is None
    assert Driver(HEALTH, unified(readable=False), gpus=1).run(5000).trip is None


@pytest.mark.parametrize("nonsense", [float("nan"), float("inf"), -1.0])
def test_a_probes_nonsense_is_unreadable(nonsense: float) -> None:
    window = open_window(
        Reading(at=0.0, gpus=(GpuReading(index=0, utilisation_percent=nonsense, memory_bytes=1),)),
        1,
        False,
    )
    assert judge(window, WatchSettings(), 1).signal is Signal.UNKNOWN


def test_a_counter_that_fell_cannot_be_measured() -> None:
    before = Reading(at=0.0, tree=TreeReading(cpu_seconds=9.0, io_bytes=9, rss_bytes=9))
    after = Reading(at=1.0, tree=TreeReading(cpu_seconds=1.0, io_bytes=9, rss_bytes=9))
    window = extend_window(open_window(before, 0, False), after, 0, False)
    assert judge(window, WatchSettings(), 0).signal is Signal.UNKNOWN


# ---- GPU health


def test_idle_through_the_load_grace_trips_with_78() -> None:
    """HEALTH-1."""
    driver = Driver(HEALTH, gpu(0), gpus=1).run(5000)
    assert driver.trip == (1200.0, 78)
    assert "idle and static for 1200 s" in driver.watch.trip.reason


def test_a_beat_ends_the_grace_and_begins_a_full_window() -> None:
    assert Driver(HEALTH, gpu(0), gpus=1).run(100).beat().run(5000).trip == (400.0, 78)


def test_a_beat_resets_the_window_and_frequent_beats_cost_no_sample() -> None:
    driver = Driver(HEALTH, gpu(0), gpus=1).beat().run(290).beat()
    assert driver.run(5000).trip == (590.0, 78)
    driver = Driver(HEALTH, gpu(0), gpus=1)
    for _ in range(500):
        driver.beat().run(driver.now + 4)
    assert (driver.trip, driver.sampled) == (None, [])


def test_one_busy_sample_begins_a_new_window() -> None:
    """HEALTH-2."""
    driver = (
        Driver(HEALTH, lambda at: gpu(50 if at == 1285 else 0)(at), gpus=1)
        .run(990)
        .beat()
        .run(5000)
    )
    assert driver.trip is not None
    assert driver.trip[0] == 1290 + 300  # from the first idle reading after it


def test_work_during_the_grace_leaves_the_rest_of_it() -> None:
    driver = Driver(HEALTH, lambda at: gpu(50 if at == 600 else 0)(at), gpus=1).run(5000)
    assert driver.trip == (1200.0, 78)


def test_slow_loading_is_not_killed() -> None:
    """20 MB/s moves more than 5120 MB over any 300 s, and over the grace. No beat comes."""
    assert Driver(HEALTH, gpu(0, mb_s=20), gpus=1).run(20_000).trip is None


@pytest.mark.parametrize(
    "whisper", [cpu(io_mb_s=0.01), cpu(rss_mb_s=0.1), cpu(percent=100, io_mb_s=0.05)]
)
def test_a_whisper_beside_an_idle_gpu_does_not_hide_it(whisper: Probe) -> None:
    """SIGNAL-4: a log line now and then, or an experiment tracker, adds up to megabytes."""
    assert Driver(HEALTH, gpu(0, tree=whisper), gpus=1).run(5000).trip == (1200.0, 78)


@pytest.mark.parametrize("load", [cpu(io_mb_s=0.5), cpu(rss_mb_s=4)])
def test_loading_at_a_real_rate_is_work(load: Probe) -> None:
    assert Driver(HEALTH, gpu(0, tree=load), gpus=1).run(5000).trip is None


def burst(every: float) -> Probe:
    """A tree that moves 5 MB in one sample out of many, and nothing besides."""
    return lambda at: Reading(
        at=at,
        tree=TreeReading(cpu_seconds=0.0, io_bytes=int(at // every) * 5 * MB, rss_bytes=100 * MB),
    )


@pytest.mark.parametrize("every", [30, 45, 60, 120, 240])
def test_a_burst_now_and_then_does_not_hide_an_idle_gpu(every: float) -> None:
    """HEALTH-3: 5 MB are worth the 20 s that they take at the rate of work."""
    driver = Driver(HEALTH, gpu(0, tree=burst(every)), gpus=1).run(20_000)
    assert driver.trip is not None, "five seconds of I/O renewed a window of five minutes"
    assert driver.trip[0] <= 1200 + 300 * every / (every - 20) + every
    assert "moved data for" in driver.watch.trip.reason
    assert driver.watch.trip.evidence["io_mb_s"] == 0


def test_bursts_that_follow_closely_are_loading() -> None:
    """HEALTH-3: they are at the rate of work on average."""
    assert Driver(HEALTH, gpu(0, tree=burst(15)), gpus=1).run(20_000).trip is None


def test_a_trickle_of_45_kb_a_second_does_not_excuse_an_idle_gpu_for_minutes() -> None:
    """HEALTH-3: written out by 1.35 MB every 30 s, each time faster than the rate of work."""
    written = 1.35 * MB

    def trickle(at: float) -> Reading:
        tree = TreeReading(cpu_seconds=0.0, io_bytes=int(at // 30 * written), rss_bytes=100 * MB)
        return Reading(at=at, tree=tree)

    driver = Driver(HEALTH, gpu(0, tree=trickle), gpus=1).beat().run(20_000)
    assert driver.trip is not None
    assert driver.trip[0] <= 400


def test_a_burst_leaves_what_is_known_of_the_gpus() -> None:
    """HEALTH-3: device memory that moves slowly is counted on across a burst."""
    slow = gpu(0, mb_s=20, tree=burst(240))
    assert Driver(HEALTH, slow, gpus=1).run(20_000).trip is None


# ---- the first beat

FIRST = WatchSettings(health_watch="off", first_beat_timeout_seconds=60.0)


@pytest.mark.parametrize("stall_watch", [True, False])
def test_a_first_beat_that_never_comes_trips_with_76(stall_watch: bool) -> None:
    settings = WatchSettings(
        health_watch="off", first_beat_timeout_seconds=60.0, stall_watch=stall_watch
    )
    driver = Driver(settings, cpu(percent=100)).run(5000)
    assert driver.trip == (60.0, 76)
    assert driver.watch.trip.reason == "no first beat for 60 s; first_beat_timeout is 60 s"
    assert driver.sampled == []


def test_after_the_first_beat_it_is_forgotten() -> None:
    driver = Driver(FIRST, cpu(percent=100)).run(59).beat()
    assert driver.run(1000).trip is None


def test_a_section_with_a_time_of_its_own_puts_the_first_beat_off() -> None:
    driver = Driver(FIRST, cpu(percent=100)).run(10).beat(section="load", timeout=300.0)
    assert driver.run(300).trip is None
    driver.beat(section="load", leave=True)
    assert driver.run(5000).trip == (360.0, 76)


def test_the_time_in_which_the_agent_was_deaf_does_not_count_for_the_first_beat() -> None:
    """STALL-4."""
    driver = Driver(FIRST, cpu())
    driver.run(50)
    driver.now = 200.0
    driver.tick()
    assert driver.run(5000).trip == (210.0, 76)


def test_a_restarted_agent_goes_on_waiting_for_the_first_beat() -> None:
    driver = Driver(FIRST, cpu()).run(40)
    driver.watch = TaskWatch.restore(driver.watch.dump(40.0), 41.0, FIRST, gpus=0)
    assert driver.run(5000).trip == (61.0, 76)


@pytest.mark.parametrize(
    ("settings", "gpus", "beaten", "ends"),
    [
        (WatchSettings(), 0, False, False),
        (WatchSettings(), 0, True, True),
        (WatchSettings(), 1, False, True),
        (WatchSettings(health_watch="off"), 1, False, False),
        (WatchSettings(time_limit_seconds=9.0), 0, False, True),
        (FIRST, 0, False, True),
        (WatchSettings(stall_watch=False), 0, True, False),
        (WatchSettings(stall_timeout_seconds=None), 0, True, True),
        (WatchSettings(stall_timeout_seconds=None, silence_limit_seconds=None), 0, True, False),
    ],
)
def test_what_ends_a_hang(settings: WatchSettings, gpus: int, beaten: bool, ends: bool) -> None:
    """Said of a task that hangs for ever, and then seen."""
    assert ends_hangs(settings, gpus, beaten=beaten) is ends
    driver = Driver(settings, gpu(0) if gpus else cpu(), gpus=gpus)
    if beaten:
        driver.beat()
    assert (driver.run(100_000).trip is not None) is ends


def test_one_unreadable_sample_begins_a_new_window() -> None:
    driver = Driver(HEALTH, lambda at: gpu(None if at == 1000 else 0)(at), gpus=1).run(5000)
    assert driver.trip == (1305.0, 78)  # from the first reading that could be read
    assert Driver(HEALTH, gpu(None), gpus=1).run(20_000).trip is None


def test_a_gap_in_the_sampling_begins_a_new_window() -> None:
    """HEALTH-2: a probe that hung saw nothing, although the agent listened all the while."""
    watch = TaskWatch(HEALTH, gpus=1)
    watch.started(0.0)
    for now in range(0, 1485, 5):
        assert watch.tick(now) == []
        if not 600 < now < 1190:
            watch.sample(now, gpu()(now))
    for now in range(1485, 1495, 5):
        watch.sample(now, gpu()(now))
    assert [v.exit_code for v in watch.tick(1490) if isinstance(v, Trip)] == [
        78
    ]  # 300 s after the gap


def test_health_watch_auto_on_and_off() -> None:
    auto = Driver(HEALTH, cpu(), gpus=0).run(5000)
    assert (auto.trip, auto.sampled) == (None, [])
    on = WatchSettings(stall_watch=False, health_watch="on")
    assert Driver(on, cpu(), gpus=0).run(5000).trip == (1200.0, 78)
    assert Driver(on, cpu(percent=20), gpus=0).run(5000).trip is None
    assert Driver(OFF, gpu(0), gpus=1).run(5000).trip is None


def test_health_switched_on_late_still_takes_a_whole_window() -> None:
    driver = Driver(OFF, gpu(0), gpus=1).run(5000)
    driver.watch.change_settings(5000.0, HEALTH)
    driver.run(9000)
    assert driver.trip is not None
    assert 5300 <= driver.trip[0] <= 5306


# ---- sections


def test_a_first_untimed_section_suspends_the_stall_but_not_the_silence_limit() -> None:
    driver = Driver(STALL, cpu()).beat().beat(section="eval").run(1799)
    assert (driver.said, driver.sampled) == ([], [])
    assert driver.run(5000).trip == (1800.0, 76)
    assert "in section 'eval'" in driver.watch.trip.reason


def test_an_own_timeout_replaces_both() -> None:
    driver = Driver(STALL, cpu()).beat().beat(section="save", timeout=600).run(5000)
    assert driver.trip == (602.0, 76)
    busy = Driver(STALL, cpu(percent=90)).beat().beat(section="save", timeout=3600).run(3599)
    assert busy.trip is None  # past the silence limit outside
    assert busy.run(10_000).trip == (3600 + 1800, 76)


def test_an_own_timeout_holds_before_the_first_beat() -> None:
    """STALL-1."""
    assert Driver(STALL, cpu()).beat(section="load", timeout=60).run(5000).trip == (62.0, 76)
    left = (
        Driver(STALL, cpu())
        .beat(section="load", timeout=60)
        .run(30)
        .beat(section="load", leave=True)
    )
    assert left.run(50_000).trip is None  # still not armed


def test_a_later_pass_is_judged_by_the_longest_earlier_one() -> None:
    driver = Driver(STALL, cpu()).beat()
    for length in (100, 50):
        driver.beat(section="eval").run(driver.now + length).beat(section="eval", leave=True).beat()
    begun = driver.now
    assert driver.beat(section="eval").run(5000).trip == (begun + 500 + 2, 76)


def test_a_learned_timeout_is_never_less_than_the_stall_timeout() -> None:
    driver = (
        Driver(STALL, cpu()).beat().beat(section="e").run(1).beat(section="e", leave=True).beat()
    )
    assert driver.beat(section="e").run(5000).trip == (1 + 122, 76)


def test_sections_nest_and_lost_datagrams_heal() -> None:
    watch = (
        Driver(STALL, cpu()).beat().beat(section="outer", timeout=900).beat(section="inner").watch
    )
    assert watch.section == "inner"
    watch.beat(1.0, section="inner", leave=True)
    assert watch.section == "outer"
    watch.beat(2.0, section="inner")
    watch.beat(3.0, section="outer", leave=True)  # the leave of the inner one was lost
    assert watch.section is None
    watch.beat(4.0, section="inner", leave=True)  # the entry was lost
    watch.beat(5.0, section="outer")
    watch.beat(6.0, step=3)  # the leave was lost: a plain beat says that the work is in none
    assert watch.section is None


def test_an_untimed_section_inside_a_timed_one_is_covered_by_it() -> None:
    driver = (
        Driver(STALL, cpu())
        .beat()
        .beat(section="outer", timeout=300)
        .beat(section="inner")
        .run(5000)
    )
    assert driver.trip == (302.0, 76)


def test_beats_inside_a_section_count() -> None:
    driver = Driver(STALL, cpu()).beat().beat(section="eval", timeout=100).run(90)
    driver.beat(section="eval", timeout=100, step=4)
    assert driver.watch.last_beat.step == 4
    assert driver.run(5000).trip == (192.0, 76)


def test_gpu_health_steps_back_in_a_section_that_another_clock_covers() -> None:
    both = WatchSettings()
    covered = Driver(both, gpu(0), gpus=1).beat().beat(section="eval", timeout=1500).run(1499)
    assert (covered.trip, covered.sampled) == (
        None,
        [1499.0],
    )  # one baseline, for the section's own timeout
    uncovered = Driver(both, gpu(0), gpus=1).beat(section="load").run(5000)
    assert uncovered.trip == (1200.0, 78)  # no beat, so nothing else would ever end it


def test_entering_a_section_does_not_end_the_load_grace() -> None:
    driver = Driver(HEALTH, gpu(0), gpus=1).run(100).beat(section="load").run(5000)
    assert driver.trip == (1200.0, 78)


def test_made_up_names_do_not_grow_the_watch() -> None:
    driver = Driver(STALL, cpu()).beat()
    for number in range(1000):
        driver.beat(section=f"s{number}")
    assert len(driver.watch._state.stall.sections.open) <= 32
    for number in range(1000):
        driver.beat().beat(section=f"s{number}").beat(section=f"s{number}", leave=True)
    assert len(driver.watch._state.stall.sections.learned) <= 256


# ---- silence that was not observed, and a restarted agent


def test_silence_while_nobody_listened_does_not_count() -> None:
    """STALL-4: the agent was frozen, or the machine slept, for an hour."""
    driver = Driver(STALL, cpu()).beat().run(60)
    driver.now = 3660.0
    driver.tick()
    assert driver.said == []
    assert driver.run(3700).said == []
    assert driver.run(9000).trip == (pytest.approx(3660 + 60 + 2), 76)


def _through_json(driver: Driver, away: float, probe: Probe | None = None, gpus: int = 0) -> Driver:
    dumped = json.loads(json.dumps(driver.watch.dump(driver.now)))
    again = Driver(driver.watch.settings, probe or cpu(), gpus=gpus)
    again.now = driver.now + away
    again.watch = TaskWatch.restore(dumped, again.now, driver.watch.settings, gpus=gpus)
    return again


def test_a_restart_keeps_arming_beat_sections_and_clocks() -> None:
    driver = Driver(STALL, cpu()).run(10).beat(step=5, total=9).run(70)
    again = _through_json(driver, away=3)
    assert again.watch.last_beat == driver.watch.last_beat
    assert again.run(5000).trip == (10 + 120 + 3 + 2, 76)
    unarmed = _through_json(Driver(STALL, cpu()).run(10), away=3)
    assert unarmed.run(5000).trip is None


def test_a_restart_in_a_section_goes_on_in_it() -> None:
    driver = Driver(STALL, cpu()).beat().beat(section="eval", timeout=600).run(100)
    again = _through_json(driver, away=0)
    assert again.watch.section == "eval"
    assert again.run(5000).trip == (602.0, 76)


def test_a_restart_keeps_the_time_limit_and_the_load_grace() -> None:
    limit = WatchSettings(time_limit_seconds=1000.0, stall_watch=False)
    assert _through_json(Driver(limit, cpu()).run(500), away=100).run(5000).trip == (1000.0, 75)
    health = _through_json(Driver(HEALTH, gpu(0), gpus=1).run(500), away=2, probe=gpu(0), gpus=1)
    assert health.run(5000).trip == (1202.0, 78)  # the first sample at or after 1200
    late = _through_json(Driver(HEALTH, gpu(0), gpus=1).run(1190), away=2, probe=gpu(0), gpus=1)
    assert late.run(5000).trip == (1492.0, 78)  # what was not seen in one go proves nothing


def test_a_restart_keeps_a_trip() -> None:
    driver = Driver(STALL, cpu()).beat().run(1000)
    again = _through_json(driver, away=5)
    assert again.watch.trip == driver.watch.trip
    assert again.watch.tick(9999) == []


@pytest.mark.parametrize("bad", [None, 7, {"stall": 3}, {"at": "x"}])
def test_what_is_no_dump_is_refused(bad: object) -> None:
    with pytest.raises(ValidationError):
        TaskWatch.restore(bad, 0.0, STALL, gpus=0)


def test_a_dump_of_another_boot_is_refused() -> None:
    dumped = Driver(STALL, cpu()).beat().run(500).watch.dump(500.0)
    with pytest.raises(ValidationError, match="another boot"):
        TaskWatch.restore(dumped, 20.0, STALL, gpus=0)


def test_rearmed_carries_its_reading() -> None:
    driver = Driver(STALL, cpu(percent=50)).beat().run(130)
    [rearmed] = [v for _, v in driver.said if isinstance(v, Rearmed)]
    assert rearmed.evidence["cpu_percent"] == pytest.approx(50)


# ---- ranks that wait for one in a section (EXCUSE-1)


def test_a_rank_is_excused_while_another_saves_and_no_longer() -> None:
    """Rank 0 is in its section from 1 to 241; the other is idle at a barrier, and then hangs."""
    saves, idles = Driver(STALL, cpu()).beat(), Driver(STALL, cpu()).beat()
    for rank in (saves, idles):
        rank.run(1.0)
    saves.beat(section="checkpoint", timeout=300.0)
    assert saves.watch.excuses_until() == 301.0
    for until in range(5, 240, 5):
        idles.watch.excuse(saves.watch.excuses_until())
        for rank in (saves, idles):
            rank.run(float(until))
    assert idles.kinds() == saves.kinds() == []
    saves.run(241.0).beat(section="checkpoint", leave=True)
    assert saves.watch.excuses_until() == float("-inf")
    idles.run(700.0)
    assert idles.trip is not None
    assert (idles.trip[0], idles.trip[1]) == (pytest.approx(301.0 + 119.0 + 2.0, abs=1.5), 76)


def test_a_host_manager_with_nothing_to_run_excuses_no_rank() -> None:
    """EXCUSE-1: no rank waits for it, and a rank that hangs was never found."""
    idle = Driver(STALL, cpu()).beat()
    idle.run(1.0)
    idle.beat(section=IDLE_SECTION, timeout=86_400.0)
    assert idle.watch.excuses_until() == float("-inf")


def test_a_section_excuses_no_longer_than_its_own_timeout_and_no_rank_in_a_section() -> None:
    first, second = Driver(STALL, cpu()).beat(), Driver(STALL, cpu()).beat()
    first.beat(section="a", timeout=150.0)
    second.beat(section="b", timeout=150.0)
    for until in range(5, 400, 5):
        for one, other in ((first, second), (second, first)):
            one.watch.excuse(other.watch.excuses_until())
            one.run(float(until))
    assert [each.trip and each.trip[1] for each in (first, second)] == [76, 76]
    assert first.now < 160.0, "each in a section: they do not excuse each other"


def test_an_excused_rank_with_a_gpu_is_not_wedged() -> None:
    """Its GPU is idle for as long as the other saves; after that the window counts from anew."""
    waits = Driver(WatchSettings(silence_limit_seconds=None), gpu(), gpus=1).beat()
    waits.watch.excuse(900.0)
    waits.run(899.0)
    assert waits.trip is None
    waits.run(1500.0)
    assert waits.trip is not None


def test_a_section_without_a_clock_of_its_own_excuses_until_the_silence_limit() -> None:
    rank = Driver(STALL, cpu()).beat(section="eval")
    assert rank.watch.excuses_until() == 1800.0
    rank.run(40.0).beat(section="eval", leave=True).beat(section="eval")
    assert rank.watch.excuses_until() == 40.0 + 200.0, "five times what the first pass took"


def test_a_rank_asks_for_an_excuse_at_half_of_its_patience_and_again_before_it_ends() -> None:
    rank = Driver(STALL, cpu()).beat()
    assert not rank.watch.waits(59.0)
    assert rank.run(60.0).watch.waits(60.0)
    rank.watch.excuse(90.0)
    assert not rank.watch.waits(79.0)
    assert rank.run(81.0).watch.waits(81.0)
    assert not rank.beat(section="eval").watch.waits(500.0)
    assert not TaskWatch(STALL, gpus=0).waits(500.0), "before its start"
