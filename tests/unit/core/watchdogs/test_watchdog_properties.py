"""What must hold of the watchdogs under every history of a task."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.facts import Trip
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.watchdogs import GpuReading, Reading, TaskWatch, TreeReading
from holdfast.core.watchdogs.signals import MB, Signal, extend_window, judge, open_window

SETTINGS = WatchSettings(
    stall_timeout_seconds=20.0,
    silence_limit_seconds=60.0,
    health_window_seconds=30.0,
    health_load_grace_seconds=90.0,
)
Kind = str
steps = st.lists(
    st.tuples(
        st.floats(0.05, 12.0),
        st.sampled_from(["idle", "busy", "unknown", "nothing", "beat", "enter", "leave"]),
    ),
    min_size=20,
    max_size=150,
)


class Story:
    """A task with one GPU, told step by step; keeps its own simple account to hold the watch to."""

    def __init__(self, settings: WatchSettings = SETTINGS) -> None:
        self.settings = settings
        self.watch = TaskWatch(settings, gpus=1)
        self.watch.started(0.0)
        self.now = 0.0
        self.beats: list[float] = []
        self.inside = False
        self.samples: list[tuple[float, str]] = []
        self.trips: list[tuple[float, Trip]] = []

    def take(self, seconds: float, kind: Kind) -> None:
        self.now += seconds
        if kind == "beat":
            self.watch.beat(self.now)
            self.beats.append(self.now)
            self.inside = False
        elif kind in ("enter", "leave"):
            self.watch.beat(self.now, section="s", leave=kind == "leave")
            if kind == "enter" and self.inside:  # a word from within a section is a beat
                self.beats.append(self.now)
            self.inside = kind == "enter"
        elif kind != "nothing":
            percent = {"idle": 0.0, "busy": 90.0, "unknown": None}[kind]
            one = GpuReading(index=0, utilisation_percent=percent, memory_bytes=MB)
            self.watch.sample(self.now, Reading(at=self.now, gpus=(one,)))
            self.samples.append((self.now, kind))
        self.trips += [(self.now, v) for v in self.watch.tick(self.now) if isinstance(v, Trip)]

    def tell(self, script: list[tuple[float, Kind]]) -> Story:
        for seconds, kind in script:
            if (
                not self.trips
            ):  # what happens to a task after its trip is no longer this watch's matter
                self.take(seconds, kind)
        return self


@given(steps)
def test_no_stall_before_the_first_beat(script: list[tuple[float, Kind]]) -> None:
    script = [
        (seconds, "nothing" if kind in ("beat", "enter", "leave") else kind)
        for seconds, kind in script
    ]
    story = Story().tell(script)
    assert all(trip.exit_code != 76 for _, trip in story.trips)


@given(steps)
def test_a_stall_before_the_silence_limit_stands_on_three_idle_samples_in_a_row(
    script: list[tuple[float, Kind]],
) -> None:
    story = Story().tell([(0.0, "beat"), *script])
    for at, trip in story.trips:
        if trip.exit_code == 76 and "silence limit" not in trip.reason:
            assert [kind for when, kind in story.samples if when <= at][-3:] == ["idle"] * 3
            assert at - story.beats[-1] >= 20.0


@given(steps)
def test_busy_or_unknown_samples_never_trip_before_the_silence_limit(
    script: list[tuple[float, Kind]],
) -> None:
    script = [(seconds, "unknown" if kind == "idle" else kind) for seconds, kind in script]
    story = Story().tell([(0.0, "beat"), *script])
    for at, trip in story.trips:
        assert "silence limit" in trip.reason
        assert at - story.beats[-1] >= 60.0


@given(steps)
def test_gpu_health_trips_only_after_the_grace_and_a_whole_idle_window(
    script: list[tuple[float, Kind]],
) -> None:
    """HEALTH-1, HEALTH-2."""
    story = Story(
        WatchSettings(stall_watch=False, health_window_seconds=30.0, health_load_grace_seconds=90.0)
    )
    # A sample within half a second of another is not looked at: no rate can be measured over it.
    story.tell([(max(seconds, 0.5), kind) for seconds, kind in script] * 2)
    for at, trip in story.trips:
        assert trip.exit_code == 78
        assert at >= 30.0 + max(story.beats, default=60.0)
        window = [kind for when, kind in story.samples if at - 30.0 < when <= at]
        assert set(window) == {"idle"}
        assert len(window) >= 2


@given(steps)
def test_there_is_one_trip_at_most_and_then_silence(script: list[tuple[float, Kind]]) -> None:
    story = Story().tell([(0.0, "beat"), *script, *script])
    for seconds, kind in script:
        story.take(seconds, kind)
    assert len(story.trips) <= 1
    assert (story.watch.trip is None) == (not story.trips)


@given(steps, st.integers(1, 19))
def test_a_restart_at_any_point_never_trips_earlier(
    script: list[tuple[float, Kind]], cut: int
) -> None:
    plain = Story().tell([(0.0, "beat"), *script])
    story = Story().tell([(0.0, "beat"), *script[:cut]])
    dumped: Any = story.watch.dump(story.now)
    story.watch = TaskWatch.restore(dumped, story.now, SETTINGS, gpus=1)
    story.tell(script[cut:])
    if story.trips:
        assert plain.trips
        assert story.trips[0][0] >= plain.trips[0][0]


@given(
    st.lists(
        st.tuples(st.floats(0, 50), st.integers(0, 4000), st.integers(0, 4000)),
        min_size=2,
        max_size=20,
    ),
    st.integers(0, 2),
)
def test_more_readings_never_turn_busy_into_idle(
    rows: list[tuple[float, int, int]], gpus: int
) -> None:
    """A window is monotone: what once proved work keeps proving it until a new window is opened."""
    readings, spent = [], 0.0
    for at, (percent, memory, rss) in enumerate(rows):
        spent += percent / 1000
        devices = tuple(
            GpuReading(index=i, utilisation_percent=percent, memory_bytes=memory * MB)
            for i in range(gpus)
        )
        tree = TreeReading(cpu_seconds=spent, io_bytes=at, rss_bytes=rss * MB)
        readings.append(Reading(at=float(at), gpus=devices, tree=tree))
    window = open_window(readings[0], gpus, False)
    busy = False
    for reading in readings[1:]:
        window = extend_window(window, reading, gpus, False)
        now_busy = judge(window, SETTINGS, gpus).signal is Signal.BUSY
        assert now_busy or not busy
        busy = now_busy


tree_steps = st.lists(
    st.tuples(st.floats(1.0, 5.0), st.floats(0.0, 0.1), st.floats(-1.0, 1.0)),
    min_size=100,
    max_size=200,
)


def _tell_health(steps: list[tuple[float, float, float]]) -> TaskWatch:
    """A GPU task whose GPU idles, with a tree that moves at these rates (MB/s of I/O, of memory)."""
    settings = WatchSettings(
        stall_watch=False, health_window_seconds=60.0, health_load_grace_seconds=60.0
    )
    watch = TaskWatch(settings, gpus=1)
    watch.started(0.0)
    now, io_bytes, rss = 0.0, 0.0, 1000.0 * MB
    for seconds, io_rate, memory_rate in steps:
        now += seconds
        io_bytes, rss = io_bytes + seconds * io_rate * MB, rss + seconds * memory_rate * MB
        tree = TreeReading(cpu_seconds=now, io_bytes=int(io_bytes), rss_bytes=int(rss))
        one = GpuReading(index=0, utilisation_percent=0.0, memory_bytes=MB)
        watch.sample(now, Reading(at=now, gpus=(one,), tree=tree))
        watch.tick(now)
    return watch


@given(tree_steps)
def test_no_whisper_of_any_length_hides_an_idle_gpu(
    steps: list[tuple[float, float, float]],
) -> None:
    """SIGNAL-4."""
    trip = _tell_health(steps).trip
    assert trip is not None
    assert trip.exit_code == 78


@given(st.floats(1.0, 10.0), st.floats(0.3, 500.0), st.booleans())
def test_io_at_a_real_rate_proves_work_in_one_sample(
    seconds: float, rate: float, by_memory: bool
) -> None:
    moved = int(rate * seconds * MB) * (8 if by_memory else 1)
    quiet = TreeReading(cpu_seconds=1.0, io_bytes=0, rss_bytes=0)
    field = "rss_bytes" if by_memory else "io_bytes"
    loud = msgspec.structs.replace(quiet, **{field: moved})
    one = GpuReading(index=0, utilisation_percent=0.0, memory_bytes=MB)
    window = open_window(Reading(at=0.0, gpus=(one,), tree=quiet), 1, False)
    window = extend_window(window, Reading(at=seconds, gpus=(one,), tree=loud), 1, False)
    assert judge(window, SETTINGS, 1).signal is Signal.BUSY


def test_a_judgement_of_an_idle_task_says_that_it_is_stopped() -> None:
    """A debugger, or a SIGSTOP: it is not hung, and `fg` or SIGCONT is all that it needs."""
    tree = TreeReading(cpu_seconds=1.0, io_bytes=0, rss_bytes=1, stopped=2)
    window = open_window(Reading(at=0.0, tree=tree), 0, True)
    judged = judge(extend_window(window, Reading(at=10.0, tree=tree), 0, True), WatchSettings(), 0)
    assert judged.signal is Signal.IDLE
    assert judged.words.endswith("; 2 of its processes are stopped (state T)")
    assert judged.evidence["stopped_processes"] == 2
