"""docker's daemon itself: it dies and comes back under a running container, hangs, and hands GPUs
on by its own way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core.causes import Cause
from holdfast.core.endings.classify import classify
from holdfast.core.gpus import Gpu
from holdfast.process.table import read_children
from tests.system.agent.conftest import Host
from tests.system.containers.conftest import BoxController, mark_of
from tests.system.containers.engines import Docker
from tests.waits import is_alive, wait_until

MakeHost = Callable[..., Host]
pytestmark = pytest.mark.heavy
SECONDS = 40.0
GPUS = [Gpu(index=index, vendor="nvidia", model="a stand-in") for index in range(4)]


@pytest.fixture(scope="session")
def engine(docker: Docker) -> Docker:
    """Only this one has a daemon."""
    return docker


@pytest.fixture
def fresh(engine: Docker) -> Iterator[Docker]:
    """An engine that a test may do anything to; afterwards it is as it was."""
    yield engine
    engine.stop()
    engine.start()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_daemon_that_goes_takes_its_containers_along_and_none_of_them_has_succeeded(
    controller: BoxController, host: Host, image: str, fresh: Docker, how: str
) -> None:
    """It ends them when it is stopped, or what it finds running when it is back. This one takes
    TERM, and leaves with 0."""
    key = controller.launch("saver", image=image)
    controller.wait(lambda: controller.log_of(key) == b"up\n", SECONDS)
    pid = controller.wait_running(key)
    if how == "kill":
        fresh.kill()
        controller.wait(
            lambda: b"client is gone and the container is not" in controller.log_of(key, "stderr"),
            SECONDS,
        )
        assert is_alive(pid)
    else:
        fresh.stop()
        assert not is_alive(pid)
    assert key not in controller.ends
    fresh.start()
    facts = controller.wait_end(key, SECONDS)
    assert not facts.succeeded
    assert (facts.exit_code, facts.stopped, facts.runtime_error) == (None, False, None)
    assert "docker's engine was stopped under its container, which ended then, with 0" in (
        facts.lost or ""
    )
    assert classify(facts).cause is Cause.AGENT_TRANSIENT
    assert not is_alive(pid)
    assert fresh.containers(mark_of(host)) == []


def test_a_daemon_that_is_not_there_is_the_host_s_failure(
    controller: BoxController, host: Host, image: str, fresh: Docker
) -> None:
    """It may be restarted this moment: the job, which may have no retries, is tried again."""
    fresh.stop()
    facts = controller.wait_end(controller.launch("exit", "0", job="early", image=image), SECONDS)
    assert "Cannot connect to the Docker daemon" in (facts.lost or "")
    assert classify(facts).rule == "host-start"
    fresh.start()
    assert controller.wait_end(
        controller.launch("exit", "0", job="late", image=image), SECONDS
    ).succeeded


def test_a_daemon_with_live_restore_costs_a_container_nothing(
    controller: BoxController, host: Host, image: str, fresh: Docker
) -> None:
    fresh.stop()
    fresh.start("--live-restore")
    key = controller.launch("count", "100000", "3", image=image)
    pid = controller.wait_running(key)
    fresh.kill()
    fresh.start("--live-restore")
    controller.wait(
        lambda: b"client is gone and the container is not" in controller.log_of(key, "stderr"),
        SECONDS,
    )
    assert is_alive(pid)
    heard = len(controller.log_of(key))
    controller.wait(lambda: len(controller.log_of(key)) > heard + 1500, SECONDS)
    os.kill(find_main(pid), signal.SIGTERM)
    facts = controller.wait_end(key, SECONDS)
    assert (facts.exit_code, facts.stopped, facts.lost) == (143, False, None), (
        "its own end, whoever was away meanwhile"
    )


def find_main(init: int) -> int:
    """The program below a container's small init."""
    (child,) = read_children(init) or []
    return child


def test_a_daemon_that_hangs_keeps_no_container_alive(
    controller: BoxController, host: Host, image: str, fresh: Docker
) -> None:
    """BOX-1: the guardian ends what carries the host's mark, without asking the engine. The end is
    told when its record is gone, too."""
    key = controller.launch("deaf", image=image)
    pid = controller.wait_running(key)
    os.kill(fresh.pid, signal.SIGSTOP)
    try:
        controller.preempt(key, grace_seconds=1.0)
        wait_until(lambda: not is_alive(pid), SECONDS)
        assert key not in controller.ends
    finally:
        os.kill(fresh.pid, signal.SIGCONT)
    facts = controller.wait_end(key, SECONDS)
    assert facts.stopped
    assert fresh.containers(mark_of(host)) == []


def test_gpus_are_asked_for_by_number_and_a_missing_toolkit_is_named(
    controller: BoxController, make_host: MakeHost, image: str, fresh: Docker, tmp_path: Path
) -> None:
    """NVIDIA's toolkit hooks into the engine under a name; a stand-in of that name shows which
    devices it is told of."""
    make_host(gpus=GPUS).start()
    bare = controller.launch("show", job="bare", image=image, gpus=[1, 3])
    facts = controller.wait_end(bare, SECONDS)
    assert facts.exit_code is None
    assert "NVIDIA container toolkit" in (facts.runtime_error or ""), facts
    assert classify(facts).cause is Cause.NONZERO_EXIT, "it costs a retry: there is no loop"
    tools = tmp_path / "tools"
    tools.mkdir()
    hook = tools / "nvidia-container-runtime-hook"
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    fresh.stop()
    fresh.start(path=f"{tools}:{os.environ['PATH']}")
    key = controller.launch("show", job="hooked", image=image, gpus=[1, 3])
    facts = controller.wait_end(key, SECONDS)
    assert facts.exit_code == 0, facts
    controller.wait_logs(key)
    text = controller.log_of(key).decode()
    assert "env NVIDIA_VISIBLE_DEVICES=1,3\n" in text, "the engine's words to the toolkit"
    assert "env CUDA_VISIBLE_DEVICES=0,1\n" in text
    none = controller.launch("show", job="none", image=image)
    assert controller.wait_end(none, SECONDS).exit_code == 0
    controller.wait_logs(none)
    assert "env NVIDIA_VISIBLE_DEVICES=void\n" in controller.log_of(none).decode()
