"""What a script that was written for another supervisor expects of this one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast.supervisor import Context, as_completed, wait
from tests.system.supervisor.rig import PATIENCE, Managers, attach, local_context, python

pytestmark = pytest.mark.slow


def test_a_signal_is_term_unless_it_is_named(ctx: Context, managers: Managers) -> None:
    hosts, _ = attach(ctx, managers, 1)
    group = ctx.create_process_group(hosts, ["sleep", "6000"], processes_per_host=4)
    assert not wait([process.pid() for process in group], PATIENCE).not_done
    group[0].signal().result(PATIENCE)
    group[1].signal(signal=signal.SIGINT, group=False).result(PATIENCE)
    ctx.signal(group[2:3], signal=signal.SIGKILL).result(PATIENCE)
    group.signal().result(PATIENCE)
    assert [process.returncode().result(PATIENCE) for process in group] == [-15, -2, -9, -15]


def test_groups_without_a_name_share_no_log_file(tmp_path: Path, managers: Managers) -> None:
    with local_context(log_format=str(tmp_path / "{name}.txt"), state_dir=tmp_path / "run") as ctx:
        hosts, _ = attach(ctx, managers, 1)
        one, other = (
            ctx.create_process_group(hosts, python("print(1)"), processes_per_host=2)
            for _ in range(2)
        )
        futures = as_completed([process.returncode() for process in one])
        futures.update(process.returncode() for process in other)
        assert len([future.result(PATIENCE) for future in futures]) == 4
        names = [process.name for process in (*one, *other)]
        assert len(set(names)) == 4, names
        ctx.detach()
    with local_context(log_format=str(tmp_path / "{name}.txt"), state_dir=tmp_path / "run") as ctx:
        third = ctx.create_process_group(ctx.hosts(), python("print(1)"))
        assert third[0].name not in names
        third[0].returncode().result(PATIENCE)
        assert sorted(path.stem for path in tmp_path.glob("*.txt")) == sorted(
            [*names, third[0].name]
        )


def test_a_simulated_group_ends_whatever_its_command_is(ctx: Context, managers: Managers) -> None:
    hosts, _ = attach(ctx, managers, 1)
    real = ctx.create_process_group(hosts, ["python", "train.py"], 8, simulate=True)
    assert [process.returncode().result(PATIENCE) for process in real] == [0] * 8
    lasting = ctx.create_process_group(hosts, ["run"], simulate=True)
    assert lasting[0].signal().result(PATIENCE) == 1
    assert lasting[0].returncode().result(PATIENCE) == -15
