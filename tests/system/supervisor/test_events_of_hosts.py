"""What a script's events say of hosts that it has no more use for, and of where ranks print."""

from __future__ import annotations

from pathlib import Path

from holdfast.supervisor import Context
from holdfast.supervisor.rosters.events import Event
from tests.system.supervisor.rig import PATIENCE


def test_a_host_that_was_given_back_was_not_lost(tmp_path: Path) -> None:
    heard: list[Event] = []
    log = str(tmp_path / "{name}.txt")
    with Context(log_format=log) as ctx:
        ctx.on_event(heard.append)
        ctx.start_local_managers(2)
        hosts = ctx.request_hosts(2)
        group = ctx.create_process_group(hosts, ["true"], name="r{rank}")
        for process in group:
            assert process.returncode().result(PATIENCE) == 0
        ctx.return_hosts(hosts[:1])
    kinds = [event.kind for event in heard]
    assert "host lost" not in kinds
    reasons = [event.facts["reason"] for event in heard if event.kind == "host given back"]
    assert reasons == ["it was given back by the script", "the script is done"]
    (created,) = (event for event in heard if event.kind == "group created")
    assert created.facts["output"] == log
