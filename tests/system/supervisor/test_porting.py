"""What a script that was written for another supervisor expects of this one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast.errors import ValidationError
from holdfast.supervisor import Context, as_completed, follow_output, wait
from holdfast.supervisor.policy.output import MAX_LINE_BYTES
from tests.system.supervisor.rig import PATIENCE, Managers, attach, local_context, python
from tests.waits import wait_until

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


TALKER = """
import os, sys, time
rank = os.environ["RANK"]
print("rank", rank, "begins")
sys.stdout.flush()
while not os.path.exists(sys.argv[1]): time.sleep(0.02)
sys.stdout.write("half a line")
sys.stdout.flush()
time.sleep(0.5)
sys.stdout.write(" and the rest\\n" + "x" * 200_000 + "\\nno end")
"""


def test_output_of_chosen_ranks_comes_to_the_script(tmp_path: Path, managers: Managers) -> None:
    (tmp_path / "p1.txt").write_text("".join(f"old {n}\n" for n in range(50)))
    heard: dict[int, list[str]] = {0: [], 1: [], 2: []}
    with local_context(log_format=str(tmp_path / "{name}.txt")) as ctx:
        hosts, _ = attach(ctx, managers, 3)
        go = tmp_path / "go"
        group = ctx.create_process_group(hosts, python(TALKER, str(go)), name="p{rank}")
        with follow_output(ctx, group[:2], lambda p, line: heard[p.rank].append(line), lines=3):
            wait_until(
                lambda: "rank 0 begins" in heard[0] and "rank 1 begins" in heard[1], PATIENCE
            )
            go.touch()
            assert {process.returncode().result(PATIENCE) for process in group} == {0}
        assert ctx.groups() == [group], "those that follow are gone"
    parts = [min(MAX_LINE_BYTES, 200_000 - n) for n in range(0, 200_000, MAX_LINE_BYTES)]
    ends = ["half a line and the rest", *("x" * size for size in parts), "no end"]
    assert heard[0] == ["rank 0 begins", *ends]
    assert heard[1][-7:] == ["rank 1 begins", *ends]
    assert heard[1][:-7] in ([], ["old 48", "old 49"], ["old 47", "old 48", "old 49"])
    assert heard[2] == [], "a rank that was not chosen"


def test_output_ends_with_its_host_and_needs_a_file(tmp_path: Path, managers: Managers) -> None:
    with local_context() as ctx:
        hosts, _ = attach(ctx, managers, 1)
        with pytest.raises(ValidationError, match="log_format"):
            follow_output(ctx, ctx.create_process_group(hosts, ["sleep", "6000"]))
    with local_context(log_format=str(tmp_path / "{name}.txt")) as ctx:
        hosts, (manager,) = attach(ctx, managers, 1)
        group = ctx.create_process_group(hosts, ["sleep", "6000"])
        following = follow_output(ctx, group)
        assert not following.wait(0.2)
        manager.kill()
        assert following.wait(PATIENCE)
        following.close()
        assert follow_output(ctx, group).wait(PATIENCE), "of a host that is lost already"
