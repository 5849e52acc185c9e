"""How a manager finds its supervisor: a key in its environment, an address of IPv6."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from holdfast.supervisor import Context, as_completed
from holdfast.supervisor.line.keys import KEY_VARIABLE, make_keys, parse_manager_key
from holdfast.supervisor.line.machine import find_address, needs_ipv6
from tests.simulated.hosts import start_simulated_hosts
from tests.system.supervisor.rig import ECHO, PATIENCE, Managers, local_context, python
from tests.waits import run_patiently, wait_until


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
LOOK = """
import os, sys
from holdfast.supervisor import get_message_queue
get_message_queue().send([name for name in os.environ if "KEY" in name and "HOLDFAST" in name])
"""


def without_key_file(ctx: Context) -> list[str]:
    """The manager's command for a machine that shares no folder with the script."""
    command = ctx.manager_command()
    assert command[-2:] == ["--key-file", str(ctx.key_file)]
    return command[:-2]


@pytest.mark.slow
def test_a_manager_gets_its_key_by_the_environment(ctx: Context, managers: Managers) -> None:
    key = ctx.key_file.read_text()
    ctx.key_file.unlink()
    env = {**os.environ, KEY_VARIABLE: key}
    managers.start_command([*without_key_file(ctx), "--name", "enved"], env)
    (host,) = ctx.request_hosts(1)
    assert host.hostname().result(PATIENCE) == "enved"
    (process,) = ctx.create_process_group([host], python(LOOK))
    assert process.recv().result(PATIENCE) == [], "the key was handed on to a process"
    assert process.returncode().result(PATIENCE) == 0


@pytest.mark.slow
def test_a_manager_that_finds_no_script_says_so_in_its_log(tmp_path: Path) -> None:
    """Under Holdfast it waits for as long as its job lasts: a firewall in between must not look as
    if all were well."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection and sends nothing
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        config = f"url={url!r}, patience_seconds=3.0, search_note_seconds=0.2, log_file={str(tmp_path / 'log')!r}"
        code = f"from holdfast.supervisor.host.host_manager import *; raise SystemExit(run_host_manager(ManagerConfig({config})))"
        done = run_patiently([sys.executable, "-c", code], seconds=PATIENCE)
    assert done.returncode == 71
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    told = [line for line in lines if line["message"] == "no supervisor has answered yet"]
    assert 2 <= len(told) <= 6, "ever more rarely"
    assert {line["url"] for line in told} == {url}


@pytest.mark.slow
def test_without_a_key_or_with_another_runs_no_manager_comes_in(
    ctx: Context, managers: Managers
) -> None:
    run = parse_manager_key(ctx.key_file.read_bytes()).run
    import msgspec

    foreign = msgspec.json.encode(make_keys(run, True).for_managers()).decode()
    bare = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
    for count, env in enumerate([bare, {**bare, KEY_VARIABLE: foreign}], 1):
        managers.start_command(without_key_file(ctx), env)
        wait_until(
            lambda n=count: ctx.status().refused.get("handshake", 0) >= n,
            PATIENCE,
            what="the refusal",
        )
    assert ctx.status().managers_idle == 0
    (host,) = ctx.request_hosts(1)
    assert not host.attached
    broken = run_patiently(
        without_key_file(ctx),
        env={**bare, KEY_VARIABLE: key_without_its_end(ctx)},
        capture_output=True,
        text=True,
        seconds=PATIENCE,
    )
    assert broken.returncode not in (0, 1), broken.stderr
    assert "this is no manager key" in broken.stderr
    assert "Traceback" not in broken.stderr


def key_without_its_end(ctx: Context) -> str:
    return ctx.key_file.read_text()[:-20]


@ipv6
@pytest.mark.slow
def test_a_run_over_ipv6(managers: Managers) -> None:
    with local_context(bind="::1") as ctx:
        assert ctx.address == f"tcp://[::1]:{ctx.port}"
        managers.start(ctx, name="six")
        ctx.start_local_managers(1)
        hosts = ctx.request_hosts(2)
        assert {host.hostname().result(PATIENCE) for host in hosts} == {"six", "local-0"}
        assert {host.facts.address for host in hosts if host.facts} == {"::1"}, (
            "no rank could dial it there"
        )
        group = ctx.create_process_group(hosts, python(ECHO))
        assert group.gather().result(PATIENCE) == ["ready"] * 2
        wait_until(
            lambda: ctx.status().lag_seconds > 0, PATIENCE, what="the supervisor to hear itself"
        )
        managers.running[0].kill()
        hosts[[str(host) for host in hosts].index("six")].time_connection_lost().result(PATIENCE)
        group.broadcast("stop")
        living = [process.returncode() for process in group if not process.host.connection_lost()]
        assert [future.result() for future in as_completed(living, timeout=PATIENCE)] == [0]


@ipv6
@pytest.mark.slow
def test_bound_to_everything_it_is_reached_by_both_families(managers: Managers) -> None:
    with local_context(bind="::") as ctx:
        for name, where in (("four", "127.0.0.1"), ("six", "[::1]")):
            managers.start(ctx, name=name, url=f"tcp://{where}:{ctx.port}")
            (host,) = ctx.request_hosts(1)
            assert host.hostname().result(PATIENCE) == name
            assert host.facts is not None
            assert host.facts.address == where.strip("[]")
        wait_until(
            lambda: ctx.status().lag_seconds > 0, PATIENCE, what="the supervisor to hear itself"
        )


@ipv6
def test_simulated_hosts_dial_by_ipv6_too() -> None:
    with local_context(bind="::1") as ctx:
        start_simulated_hosts(ctx, 3)
        assert len({host.hostname().result(PATIENCE) for host in ctx.request_hosts(3)}) == 3


def test_addresses_are_told_apart() -> None:
    assert not needs_ipv6("tcp://127.0.0.1:5")
    assert not needs_ipv6("tcp://no-such-name.invalid:5")
    assert find_address("tcp://127.0.0.1:5") == "127.0.0.1"
    assert find_address("tcp://no-such-name.invalid:5") == "127.0.0.1"
    if has_ipv6():
        assert needs_ipv6("tcp://[::1]:5")
        assert find_address("tcp://[::1]:5") == "::1"
    assert sys.platform != "linux" or ":" not in find_address("tcp://localhost:5")
