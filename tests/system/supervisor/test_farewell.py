"""The last words between a script that is done and its managers."""

from __future__ import annotations

import pytest

from holdfast.supervisor import Context
from holdfast.supervisor.script import open_run
from tests.system.supervisor.rig import PATIENCE, Managers, attach, python
from tests.waits import wait_exit

COUNT = 3


@pytest.mark.slow
def test_managers_read_that_they_were_heard_before_the_script_goes(
    ctx: Context, managers: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame that comes just before a connection ends is lost to a reader that is late: it used to
    wait 2 s for nothing."""
    monkeypatch.setattr(open_run, "_HEARD_SECONDS", PATIENCE)
    hosts, started = attach(ctx, managers, COUNT)
    group = ctx.create_process_group(hosts, python("import time; time.sleep(6000)"))
    for process in group:
        process.pid().result(PATIENCE)
    load = ctx._run.bus.load
    before = load.counted.disconnects
    assert ctx.shutdown()
    assert load.counted.disconnects == before + COUNT, (
        "a connection was closed under a manager that had not gone"
    )
    assert [wait_exit(manager, PATIENCE) for manager in started] == [0] * COUNT
