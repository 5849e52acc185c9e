"""Pulls from a real registry that is there, gone, slow, cut off, and from under which things are
killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core.ids import TaskKey
from holdfast.core.settings.watch import WatchSettings
from tests.system.agent.conftest import Host
from tests.system.agent.fake_controller import FakeController
from tests.system.containers.conftest import Registry
from tests.system.containers.engines import Engine
from tests.system.proxy import Proxy
from tests.waits import crowding, wait_exit, wait_until

MakeHost = Callable[..., Host]
pytestmark = pytest.mark.heavy
SECONDS = 40.0
CHUNK_DELAY = 0.03  # for each 64 KiB: the large image then takes about four seconds


class Shelf:
    """An image of 8 MiB in a registry behind a proxy, not on this machine unless a test brought
    it."""

    def __init__(self, engine: Engine, registry: Registry, proxy: Proxy) -> None:
        self.engine, self.registry, self.proxy = engine, registry, proxy
        self.image = f"127.0.0.1:{proxy.port}/large:v1"

    @property
    def pulls(self) -> list[str]:
        """Pullers at work."""
        return [line for line in self.engine.remnants() if " pull " in line]

    def wait_pulling(self, megabytes: int = 1) -> None:
        """Until the blob is on its way."""
        wait_until(lambda: self.proxy.bytes_seen > megabytes << 20, SECONDS)


@pytest.fixture(scope="module")
def registry(engine: Engine, program: Path) -> Iterator[Registry]:
    made = Registry(engine.folder)
    made.start()
    ballast = engine.folder / "ballast"
    ballast.write_bytes(os.urandom(8 << 20))
    engine.make_image("localhost/large", program, ballast)
    engine.push("localhost/large", f"127.0.0.1:{made.port}/large:v1")
    engine.forget("localhost/large")
    yield made
    made.stop()


@pytest.fixture
def shelf(engine: Engine, registry: Registry) -> Iterator[Shelf]:
    with Proxy(registry.port) as proxy:
        made = Shelf(engine, registry, proxy)
        yield made
        proxy.restore()
        engine.forget(made.image)


def test_a_pull_is_told_shared_and_no_watchdog_counts_it(
    controller: FakeController, host: Host, shelf: Shelf
) -> None:
    """Two tasks, one pull; leases far shorter than it are renewed meanwhile, and the time limit
    begins after it. All three are as long as a busy machine needs for what comes after the pull."""
    slow = max(2.0, crowding())
    shelf.proxy.delay_seconds = CHUNK_DELAY * slow
    controller.ttl_seconds = 3.5 * slow
    watch = WatchSettings(time_limit_seconds=2.5 * slow)
    with controller.changed:
        keys = [
            controller.launch("exit", "4", job=f"job{n}", image=shelf.image, watch=watch)
            for n in range(2)
        ]
    shelf.wait_pulling()
    controller.wait(lambda: all(b"pull" in controller.log_of(key, "stderr") for key in keys))
    assert [controller.states[key] for key in keys] == ["starting", "starting"]
    assert len(shelf.pulls) == 1
    for key in keys:
        facts = controller.wait_end(key, SECONDS)
        assert (facts.exit_code, facts.trip) == (4, None)
        controller.wait_logs(key)
    said = sorted((controller.log_of(key, "stderr").decode() for key in keys), key=len)
    assert said[0] == f"holdfast: another task pulls {shelf.image}; waiting for it\n"
    assert said[1].startswith(f"holdfast: pulling {shelf.image}\n")
    told = "layer 0 of 1 done" if shelf.engine.kind == "docker" else "1 layer, copying"
    assert f"holdfast: pulling {shelf.image}: {told}" in said[1]
    assert f"holdfast: pulled {shelf.image} in " in said[1]


def test_an_image_that_is_here_needs_no_registry(
    controller: FakeController, host: Host, shelf: Shelf
) -> None:
    first = controller.launch("exit", "0", job="first", image=shelf.image)
    assert controller.wait_end(first, SECONDS).succeeded
    shelf.registry.stop()
    try:
        with controller.changed:
            missing = controller.launch("exit", "0", job="missing", image=shelf.image)
            never = controller.launch("exit", "0", job="never", image=shelf.image, pull="never")
            always = controller.launch("exit", "0", job="always", image=shelf.image, pull="always")
        assert controller.wait_end(missing, SECONDS).succeeded
        assert controller.wait_end(never, SECONDS).succeeded
        assert controller.wait_end(always, SECONDS).pull_error is not None
    finally:
        shelf.registry.start()


def test_a_tag_that_is_missing_and_one_that_may_not_be_pulled(
    controller: FakeController, host: Host, shelf: Shelf
) -> None:
    with controller.changed:
        tag = controller.launch("exit", "0", job="tag", image=shelf.image.replace("v1", "v2"))
        never = controller.launch("exit", "0", job="never", image=shelf.image, pull="never")
    facts = controller.wait_end(tag, SECONDS)
    assert "manifest unknown" in (facts.pull_error or "")
    assert (facts.exit_code, facts.signal, facts.start_error, facts.runtime_error) == (
        None,
        None,
        None,
        None,
    )
    assert "not on this host" in (controller.wait_end(never, SECONDS).pull_error or "")
    controller.wait_logs(tag)
    assert b"manifest unknown" in controller.log_of(tag, "stderr")


def test_a_registry_that_is_down(
    controller: FakeController, host: Host, engine: Engine, registry: Registry
) -> None:
    registry.stop()
    try:
        key = controller.launch("exit", "0", image=f"127.0.0.1:{registry.port}/large:v1")
        assert "connection refused" in (controller.wait_end(key, SECONDS).pull_error or "")
    finally:
        registry.start()


def test_a_slow_registry_hits_the_pull_s_own_limit(
    controller: FakeController, host: Host, shelf: Shelf
) -> None:
    shelf.proxy.delay_seconds = 1.0
    key = controller.launch("exit", "0", image=shelf.image, pull_seconds=2.0)
    facts = controller.wait_end(key, SECONDS)
    assert f"the pull of {shelf.image} timed out after 2 s" in (facts.pull_error or "")
    assert shelf.pulls == []
    shelf.proxy.restore()
    again = controller.launch("exit", "0", job="again", image=shelf.image)
    assert controller.wait_end(again, SECONDS).succeeded


def test_a_registry_cut_off_in_mid_blob(
    controller: FakeController, host: Host, shelf: Shelf
) -> None:
    shelf.proxy.delay_seconds = CHUNK_DELAY
    key = controller.launch("exit", "0", image=shelf.image)
    shelf.wait_pulling(2)
    shelf.proxy.refuse = True
    shelf.proxy.cut()
    facts = controller.wait_end(key, SECONDS)
    assert "could not be pulled" in (facts.pull_error or ""), facts
    shelf.proxy.restore()
    again = controller.launch("exit", "0", job="again", image=shelf.image)
    assert controller.wait_end(again, SECONDS).succeeded


def test_cancelled_while_pulling(controller: FakeController, host: Host, shelf: Shelf) -> None:
    """The pull ends at once and no grace is waited for; the task that waited for this pull goes on
    with its own."""
    shelf.proxy.black_hole = True
    first = controller.launch("exit", "0", job="first", image=shelf.image)
    wait_until(lambda: shelf.pulls)
    second = controller.launch("exit", "0", job="second", image=shelf.image)
    controller.wait(lambda: b"another task pulls" in controller.log_of(second, "stderr"))
    controller.preempt(first, grace_seconds=600.0)
    facts = controller.wait_end(first, SECONDS)
    assert facts.stopped
    assert facts.pull_error is None
    shelf.proxy.restore()
    assert controller.wait_end(second, SECONDS).succeeded


def test_the_agent_killed_while_pulling(
    controller: FakeController, host: Host, shelf: Shelf
) -> None:
    """The pull is the guardian's to hold: it goes on, and the next agent finds it."""
    shelf.proxy.delay_seconds = CHUNK_DELAY
    key = controller.launch("exit", "4", image=shelf.image)
    shelf.wait_pulling()
    (puller,) = shelf.pulls
    killed = host.agent_pid()
    os.kill(killed, signal.SIGKILL)
    host.agent_pid(but=killed)
    assert shelf.pulls == [puller]
    assert controller.wait_end(key, SECONDS).exit_code == 4
    assert controller.log_of(key, "stderr").count(b"pulling") >= 1


@pytest.mark.parametrize("together", [False, True], ids=["guardian", "guardian and agent"])
def test_the_guardian_killed_while_pulling(
    controller: FakeController, host: Host, shelf: Shelf, together: bool
) -> None:
    shelf.proxy.black_hole = True
    controller.launch("exit", "0", image=shelf.image)
    wait_until(lambda: shelf.pulls)
    agent = host.agent_pid()
    if together:
        os.kill(agent, signal.SIGSTOP)
    kill_guardian(host)
    if together:
        os.kill(agent, signal.SIGKILL)
    wait_until(lambda: not shelf.pulls)
    shelf.proxy.restore()
    controller.known.clear()
    controller.launches.clear()
    host.start()
    key = controller.launch("exit", "4", epoch=2, image=shelf.image)
    assert controller.wait_end(key, SECONDS).exit_code == 4
    assert TaskKey("job", 0, 1) not in controller.ends
    assert not list(Path(host.config.state_dir, "tasks").glob("job.0.1/container.json"))


def kill_guardian(host: Host) -> None:
    """kill -9 of the guardian alone."""
    assert host.process is not None
    host.process.kill()
    wait_exit(host.process, 10)
