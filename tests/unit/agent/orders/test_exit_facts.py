"""Facts of an end, the environment, and commands carried out: pure parts and a fake line to the
guardian."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.abilities import Hindrances
from holdfast.agent.bundles.code import CodeUnpacking
from holdfast.agent.calls.executor_paths import ExecutorPaths
from holdfast.agent.containers.tasks import ContainerOptions, ContainerTasks
from holdfast.agent.folders import WorkFolders
from holdfast.agent.housekeeping import Housekeeper
from holdfast.agent.link import GuardianLink
from holdfast.agent.orders.claims import Claims
from holdfast.agent.orders.commands import Commands
from holdfast.agent.orders.environment import inherit_environment, make_task_environment
from holdfast.agent.orders.exit_facts import make_facts
from holdfast.agent.orders.launches import Launcher, TaskPlaces
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.calls import ControllerCalls
from holdfast.agent.uplink.checkpoints import CheckpointTransfers
from holdfast.agent.uplink.logs import LogShipper
from holdfast.agent.uplink.sync_wish import SyncWish
from holdfast.agent.uplink.transfers import Transfers
from holdfast.agent.watch.runner import WatchRunner
from holdfast.core.calls.values import ExecutorLimits
from holdfast.core.causes import Cause, Watchdog
from holdfast.core.endings.classify import classify
from holdfast.core.ids import TaskKey
from holdfast.core.lease import host_deadline
from holdfast.core.spec import SET_FOR_TASKS
from holdfast.core.states import AgentTaskEvent, AgentTaskState
from holdfast.core.watchdogs.verdicts import make_trip
from holdfast.http.addresses import read_addresses
from holdfast.http.asynchronous import AsyncHttp
from holdfast.http.blocking import BlockingHttp
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import ClaimOrder, LaunchOrder, PreemptOrder, Renewed, SyncAnswer
from holdfast.wire.calls import PLACE_BYTES
from holdfast.wire.guardian import Ack, Extend, LaunchTask, Request, StopTask, StreamEnd, TaskEnded
from tests.simulated.probe import ScriptedProbe

KEY = TaskKey("job", 0, 1)
STALL = make_trip(Watchdog.STALL, "still", {})
PLAIN = {"trip": None, "kill_sent": False, "stop_asked": False, "host_stops": False, "log_tail": ""}


def test_lost_output_and_what_was_left_running_are_told() -> None:
    output = {
        "stdout": StreamEnd(size=9_000, lost_bytes=1_234, reason="No space left on device"),
        "stderr": StreamEnd(size=5),
    }
    ended = TaskEnded(key=KEY, exit_code=0, output=output, left_running=["sh", "a", "b", "c"])
    facts = make_facts(ended, **PLAIN)
    assert facts.succeeded
    assert facts.notices == (
        "1 234 bytes of its stdout are lost: No space left on device",
        "its command left 4 processes running, which were ended with it: sh, a, b, …",
    )
    assert make_facts(TaskEnded(key=KEY, exit_code=0), **PLAIN).notices == ()


def test_a_task_that_finished_before_the_kill_did_its_work() -> None:
    """END-1."""
    facts = make_facts(TaskEnded(key=KEY, exit_code=0), **{**PLAIN, "trip": STALL})
    assert facts.succeeded
    facts = make_facts(
        TaskEnded(key=KEY, exit_code=0, stopped=True), **{**PLAIN, "trip": STALL, "kill_sent": True}
    )
    assert not facts.succeeded
    assert facts.trip == STALL
    assert not facts.stopped  # END-2


def test_the_memory_watch_is_no_drain_and_a_finished_task_is_no_kill() -> None:
    """END-1, END-2."""
    more = {**PLAIN, "over_memory_bytes": 600, "memory_limit_bytes": 500, "kill_sent": True}
    facts = make_facts(TaskEnded(key=KEY, signal=9, stopped=True), **more)
    assert (facts.over_memory_bytes, facts.stopped) == (600, False)
    assert classify(facts).cause is Cause.OOM_KILLED
    facts = make_facts(TaskEnded(key=KEY, exit_code=0), **more)
    assert (facts.succeeded, facts.over_memory_bytes) == (True, 0)
    drained = {**more, "stop_asked": True}
    assert make_facts(TaskEnded(key=KEY, signal=9, stopped=True), **drained).stopped


def test_a_lease_that_ended_under_a_frozen_guardian_is_told_so() -> None:
    ended = TaskEnded(key=KEY, signal=9, stopped=True, lapsed=True, stalled_seconds=41.2)
    trip = make_facts(ended, **PLAIN).trip
    assert trip is not None
    assert "its guardian did not turn for 41 s" in trip.reason
    assert "word from the controller" not in trip.reason


def test_lapsed_is_a_lost_lease() -> None:
    facts = make_facts(TaskEnded(key=KEY, signal=9, stopped=True, lapsed=True), **PLAIN)
    assert facts.trip is not None
    assert facts.trip.exit_code == 77
    assert not facts.stopped


def test_a_killed_keeper_is_charged_to_no_retry_unless_memory_or_a_watchdog_explains_it() -> None:
    """KEEPER-2."""
    ended = TaskEnded(key=KEY, signal=9, keeper_killed=True)
    found = classify(make_facts(ended, **PLAIN))
    assert (found.cause, found.rule) == (Cause.AGENT_TRANSIENT, "keeper-killed")
    assert "its keeper" in found.message
    for changes in ({"oom": True}, {"lapsed": True}):
        ended = TaskEnded(key=KEY, signal=9, keeper_killed=True, **changes)
        assert make_facts(ended, **PLAIN).lost is None


def test_what_the_host_lacked_is_no_failed_start_of_the_job() -> None:
    """END-3: a fork that failed is charged to the host, and a program that is not there to the
    job."""
    for hosts_fault in (True, False):
        ended = TaskEnded(
            key=KEY, start_error="Resource temporarily unavailable", hosts_fault=hosts_fault
        )
        facts = make_facts(ended, **PLAIN)
        cause = classify(facts).cause
        assert (facts.lost is not None, facts.start_error) == (hosts_fault, ended.start_error)
        assert cause is (Cause.START_TIMEOUT if hosts_fault else Cause.NONZERO_EXIT)


def test_a_host_that_stops_says_so_unless_the_controller_asked() -> None:
    ended = TaskEnded(key=KEY, exit_code=0, stopped=True)
    assert make_facts(ended, **{**PLAIN, "host_stops": True}).stop_cause is Cause.HOST_DRAINED
    assert make_facts(ended, **{**PLAIN, "host_stops": True, "stop_asked": True}).stop_cause is None
    own = make_facts(TaskEnded(key=KEY, exit_code=0), **{**PLAIN, "host_stops": True})
    assert own.succeeded
    assert own.stop_cause is None


class Line(GuardianLink):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Request] = []
        self.gathered: list[int] = []  # how many requests each call of `together` sent at once

    def send_message(self, request: Request) -> None:
        self.said.append(request)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        before = len(self.said)
        yield
        self.gathered.append(len(self.said) - before)


def order(key: TaskKey = KEY, **fields: object) -> LaunchOrder:
    return LaunchOrder(key=key, attempt=1, name="n", queue="q", project="p", argv=["x"], **fields)  # type: ignore[arg-type]  # test fields


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def table(tmp_path: Path) -> TaskTable:
    table = TaskTable(tmp_path)
    table.open()
    (tmp_path / "work").mkdir()
    return table


class Forgetful(Housekeeper):
    """Waits for no logs."""

    def forget_recorded(self, task: AgentTask) -> None:
        self._table.forget(task)


@pytest.fixture
def commands(table: TaskTable, line: Line, tmp_path: Path) -> Commands:
    news, works = SyncWish(), WorkFolders(tmp_path / "work")
    calls = ControllerCalls(AsyncHttp(read_addresses("http://127.0.0.1:9")))
    keeper = Forgetful(table, works)
    places = TaskPlaces(
        host_mark="m",
        beat_socket="/b",
        works=works,
        inherited={"PATH": "/bin"},
        executors=ExecutorPaths(folder=tmp_path / "calls", socket="/c", python="/py", path="/app"),
    )
    checkpoints = CheckpointTransfers(
        table,
        Transfers(
            BlockingHttp(read_addresses("http://127.0.0.1:9")), incarnation="i" * 8, token=str
        ),
    )
    claims = Claims()
    launcher = Launcher(
        table,
        line,
        places,
        containers=ContainerTasks(
            tmp_path / "containers", mark="m", options=ContainerOptions(), begun=lambda *_: None
        ),
        checkpoints=checkpoints,
        code=CodeUnpacking(
            tmp_path / "code",
            places.works,
            Transfers(
                BlockingHttp(read_addresses("http://127.0.0.1:9")), incarnation="i" * 8, token=str
            ),
        ),
        shipper=LogShipper(calls, keeper.forget_recorded),
        hindrances=Hindrances(news),
        news=news,
        ports=claims.ports,
    )
    return Commands(
        table,
        line,
        launcher,
        claims=claims,
        checkpoints=checkpoints,
        watching=WatchRunner(
            table, ScriptedProbe(""), trip=lambda *_: None, first_beat=lambda: None
        ),
        keeper=keeper,
        news=news,
    )


def test_leases_count_from_the_start_of_the_call(commands: Commands, line: Line) -> None:
    """LEASE-1, CMD-2."""
    began = read_boottime() - 20.0
    commands.carry_out(SyncAnswer(launch=[order(ttl_seconds=300.0)]), started_at=began, newest=True)
    launched = line.said.pop()
    assert isinstance(launched, LaunchTask)
    assert launched.deadline == pytest.approx(began + 285.0)
    commands.carry_out(
        SyncAnswer(renewed=[Renewed(key=KEY, ttl_seconds=100.0)]), started_at=began, newest=False
    )
    assert line.said.pop() == Extend(deadlines=[(KEY, host_deadline(began, 100.0))])


def test_ranks_of_one_host_share_a_port_whichever_agent_launched_them(
    commands: Commands, line: Line, table: TaskTable
) -> None:
    """GANG-1: their orders name none. An agent that takes over knows it from the disk."""
    keys = [TaskKey("gang", rank, 1) for rank in range(3)]
    orders = [order(key, world_size=3, local_world_size=3) for key in keys]

    def launch(orders: list[LaunchOrder]) -> list[str]:
        answer = SyncAnswer(launch=orders)
        commands.carry_out(answer, started_at=read_boottime(), newest=True)
        return [said.env["MASTER_PORT"] for said in line.said if isinstance(said, LaunchTask)]

    first, second = launch(orders[:2])
    assert first == second
    for key in keys[:2]:
        table.drop(table.get(key))
        table.restore(key, read_boottime())
    assert launch(orders)[-1] == first
    retried = order(TaskKey("gang", 0, 2), world_size=3, local_world_size=3)
    assert launch([retried])[-1] != first


def test_every_rank_is_told_to_stop_before_any_disk_is_written(
    commands: Commands, line: Line, table: TaskTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [TaskKey("gang", rank, 1) for rank in range(3)]
    launch = [order(key, world_size=3, master_port=1) for key in keys]
    commands.carry_out(SyncAnswer(launch=launch), started_at=read_boottime(), newest=True)
    line.said.clear()
    told: list[int] = []
    save = table.save
    monkeypatch.setattr(table, "save", lambda *a: (told.append(len(line.said)), save(*a)))
    stop = [PreemptOrder(key=key, cause=Cause.PREEMPTED, grace_seconds=1.0) for key in keys]
    commands.carry_out(SyncAnswer(preempt=stop), started_at=read_boottime(), newest=True)
    assert told == [3, 3, 3]
    assert all(b"stop_asked" in (table.folder_of(key) / "state.json").read_bytes() for key in keys)


def test_an_executors_command_is_the_agents(commands: Commands, line: Line, tmp_path: Path) -> None:
    asked = order(
        executor="mytasks-0123456789", app="mytasks", gpus=[0, 1], limits=ExecutorLimits(calls=7)
    )
    commands.carry_out(SyncAnswer(launch=[asked]), started_at=read_boottime(), newest=True)
    launched = line.said.pop()
    assert isinstance(launched, LaunchTask)
    assert launched.argv == ["/py", "-P", "-m", "holdfast.functions.executor"]
    assert launched.cwd == "/app"
    place = Path(launched.env["HOLDFAST_CALLS_PLACE"])
    assert place.read_bytes() == bytes(PLACE_BYTES)
    words = {name: text for name, text in launched.env.items() if "APP" in name or "_EXEC" in name}
    assert words == {
        "HOLDFAST_APP": "mytasks",
        "HOLDFAST_APP_PATH": "/app",
        "HOLDFAST_EXECUTOR_GPUS": "2",
        "HOLDFAST_EXECUTOR_LIMITS": '{"calls":7}',
    }


def test_a_launch_from_a_call_older_than_its_lease_is_not_done(
    commands: Commands, line: Line, table: TaskTable
) -> None:
    """An agent that was stopped for a minute holds an answer from before."""
    old = read_boottime() - 60.0
    assert not commands.carry_out(
        SyncAnswer(launch=[order(ttl_seconds=30.0)]), started_at=old, newest=True
    )
    assert line.said == []
    assert table.get(KEY) is None
    assert commands.carry_out(
        SyncAnswer(launch=[order(ttl_seconds=30.0)]), started_at=read_boottime(), newest=True
    )


def test_an_overtaken_answer_gives_no_commands(commands: Commands, line: Line) -> None:
    """SYNC-1."""
    commands.carry_out(SyncAnswer(launch=[order()]), started_at=read_boottime(), newest=False)
    assert line.said == []


def test_another_revision_of_the_settings_is_told_once(commands: Commands) -> None:
    told: list[int] = []
    commands.settings_changed = lambda: told.append(commands.settings_rev)
    for rev in (3, 3, 4, 4):
        commands.carry_out(SyncAnswer(settings_rev=rev), started_at=read_boottime(), newest=True)
    assert told == [3], "the first answer is no change"


def test_stops_act_once_and_a_harder_one_again(commands: Commands, line: Line) -> None:
    now = read_boottime()
    commands.carry_out(SyncAnswer(launch=[order()]), started_at=now, newest=True)
    line.said.clear()
    soft = SyncAnswer(preempt=[PreemptOrder(key=KEY, grace_seconds=9.0, cause=Cause.PREEMPTED)])
    hard = SyncAnswer(
        preempt=[PreemptOrder(key=KEY, grace_seconds=9.0, cause=Cause.USER_CANCELLED, hard=True)]
    )
    assert commands.carry_out(soft, started_at=now, newest=True)
    assert not commands.carry_out(soft, started_at=now, newest=True)
    assert commands.carry_out(hard, started_at=now, newest=True)
    assert not commands.carry_out(hard, started_at=now, newest=True)
    assert line.said == [StopTask(key=KEY, grace_seconds=9.0), StopTask(key=KEY, grace_seconds=0.0)]


def test_an_end_on_record_is_acknowledged_and_never_launched_again(
    commands: Commands, line: Line, table: TaskTable
) -> None:
    now = read_boottime()
    commands.carry_out(SyncAnswer(launch=[order()]), started_at=now, newest=True)
    task = table.get(KEY)
    assert task is not None
    commands.carry_out(SyncAnswer(acked=[KEY]), started_at=now, newest=True)
    assert table.get(KEY) is not None  # it still runs, so its acknowledgement is wrong
    task.move(AgentTaskEvent.GIVE_UP)
    line.said.clear()
    commands.carry_out(SyncAnswer(acked=[KEY], launch=[order()]), started_at=now, newest=True)
    assert line.said == [Ack(keys=[KEY])]


def test_a_full_disk_is_the_hosts_fault(
    commands: Commands, table: TaskTable, tmp_path: Path
) -> None:
    (tmp_path / "tasks").rmdir()
    (tmp_path / "tasks").write_text("no folder can be made here")
    commands.carry_out(SyncAnswer(launch=[order()]), started_at=read_boottime(), newest=True)
    task = table.get(KEY)
    assert task is not None
    assert task.facts is not None
    assert "could not prepare" in (task.facts.lost or "")
    assert classify(task.facts).cause is Cause.START_TIMEOUT


def test_the_user_cannot_override_what_holdfast_sets() -> None:
    """ENV-2, ENV-3."""
    wanted = order(env={"RANK": "9", "PYTHONUNBUFFERED": "", "CUDA_VISIBLE_DEVICES": "0"})
    places = {"host_id": "h", "host_mark": "m", "beat_socket": "/b", "work_folder": "/w"}
    env = make_task_environment(wanted, {}, host_gpus=4, **places)
    assert (env["RANK"], env["PYTHONUNBUFFERED"], env["CUDA_VISIBLE_DEVICES"]) == ("0", "", "")
    env = make_task_environment(wanted, {}, host_gpus=0, **places)
    assert env["CUDA_VISIBLE_DEVICES"] == "0"


def test_every_variable_that_a_task_is_given_is_refused_in_a_submission() -> None:
    places = {"host_id": "h", "host_mark": "m", "beat_socket": "/b", "work_folder": "/w"}
    made = make_task_environment(order(gpus=[0], master_port=1), {}, host_gpus=1, **places)
    named = {name for name in made if not name.startswith("HOLDFAST_")} | {"CHECKPOINT_DATA"}
    assert named - {"PYTHONUNBUFFERED"} == SET_FOR_TASKS.keys()


def test_what_a_service_manager_tells_the_agent_is_not_for_its_tasks() -> None:
    told = {
        "NOTIFY_SOCKET": "/run/x",
        "STATE_DIRECTORY": "/var/lib/holdfast",
        "HOLDFAST_JOIN_TOKEN": "hfj_x",
    }
    kept = inherit_environment({**told, "PATH": "/bin", "NCCL_DEBUG": "INFO"})
    assert not told.keys() & kept.keys()
    assert (kept["PATH"], kept["NCCL_DEBUG"]) == ("/bin", "INFO")


@pytest.mark.parametrize(
    ("name", "value", "passed"),
    [
        ("AWS_SECRET_ACCESS_KEY", "x", False), ("AWS_PROFILE", "x", False), ("PGPASSWORD", "x", False), ("DATABASE_URL", "x", False),
        ("WANDB_API_KEY", "x", False), ("SSH_AUTH_SOCK", "x", False), ("KUBECONFIG", "x", False), ("CONDA_TOKEN", "x", False),
        ("TORCH_AUTH", "x", False), ("MY_OWN", "x", False), ("CUDA_VISIBLE_DEVICES", "0", False), ("HOLDFAST_TOKEN", "x", False),
        ("https_proxy", "http://me:word@proxy:1", False), ("https_proxy", "http://proxy:1", True), ("NO_PROXY", "a,b", True),
        ("LD_LIBRARY_PATH", "/x", True), ("PYTHONPATH", "/x", True), ("LC_ALL", "C", True), ("NCCL_DEBUG", "INFO", True),
        ("SSL_CERT_FILE", "/x", True), ("OMP_NUM_THREADS", "2", True), ("XDG_CACHE_HOME", "/x", True), ("SLURM_JOB_ID", "7", True),
    ],
)  # fmt: skip
def test_tasks_get_what_is_named_of_the_agents_environment(
    name: str, value: str, passed: bool
) -> None:
    """ENV-1."""
    assert (inherit_environment({name: value}).get(name) == value) is passed


def test_an_operator_names_what_else_tasks_get() -> None:
    told = {"WANDB_API_KEY": "k", "WANDB_PROJECT": "p", "DATABASE_URL": "d", "HOLDFAST_TOKEN": "t"}
    kept = inherit_environment(told, ["WANDB_*", "HOLDFAST_*"])
    assert told.keys() & kept.keys() == {"WANDB_API_KEY", "WANDB_PROJECT"}


def claim(commands: Commands, key: TaskKey = KEY, *, ago: float = 0.0) -> None:
    answer = SyncAnswer(claim=[ClaimOrder(key=key, attempt=1, ttl_seconds=300.0)])
    commands.carry_out(answer, started_at=read_boottime() - ago, newest=True)


def test_a_claim_is_kept_until_its_launch(commands: Commands, line: Line) -> None:
    """GANG-1: nothing is said to the guardian before the launch."""
    claim(commands)
    claim(commands)
    assert [report.state for report in commands.claims.reports(read_boottime())] == ["claimed"]
    assert line.said == []
    answer = SyncAnswer(launch=[order(world_size=2, master_addr="10.0.0.7", master_port=23456)])
    commands.carry_out(answer, started_at=read_boottime(), newest=True)
    assert len(commands.claims) == 0
    launched = line.said.pop()
    assert isinstance(launched, LaunchTask)
    assert (launched.env["MASTER_ADDR"], launched.env["MASTER_PORT"]) == ("10.0.0.7", "23456")
    claim(commands)
    assert len(commands.claims) == 0, "what runs is not claimed"


def test_a_stopped_or_lost_claim_is_forgotten_and_never_launched(
    commands: Commands, table: TaskTable, line: Line
) -> None:
    other = TaskKey("other", 1, 1)
    claim(commands)
    claim(commands, other)
    stop = PreemptOrder(key=KEY, grace_seconds=15.0, cause=Cause.SIBLING_DRAINED)
    commands.carry_out(
        SyncAnswer(preempt=[stop], lost=[other]), started_at=read_boottime(), newest=True
    )
    assert len(commands.claims) == 0
    stub = table.get(KEY)
    assert stub is not None
    assert stub.facts is not None
    assert (stub.state, stub.facts.stopped) == (AgentTaskState.REPORTED, True), (
        "CMD-3: the stop is confirmed at once"
    )
    commands.carry_out(SyncAnswer(launch=[order()]), started_at=read_boottime(), newest=True)
    assert line.said == []


def test_no_place_is_kept_by_a_host_that_goes_or_for_a_lease_that_is_over(
    commands: Commands,
) -> None:
    claim(commands, ago=301.0)
    assert len(commands.claims) == 0
    commands.closing = True
    claim(commands)
    assert len(commands.claims) == 0


def test_ranks_that_are_stopped_together_are_told_of_together(
    commands: Commands, table: TaskTable
) -> None:
    keys = [TaskKey("gang", rank, 1) for rank in range(3)]
    commands.carry_out(
        SyncAnswer(launch=[order(key) for key in keys]), started_at=read_boottime(), newest=True
    )
    first, second, third = (table.get(key) for key in keys)
    assert first is not None
    assert second is not None
    assert third is not None
    first.move(AgentTaskEvent.GIVE_UP)
    assert not table.ends_with_others(first), "it was not stopped: its end is news"
    stops = [PreemptOrder(key=key, grace_seconds=15.0, cause=Cause.SIBLING_DRAINED) for key in keys]
    commands.carry_out(SyncAnswer(preempt=stops), started_at=read_boottime(), newest=True)
    second.move(AgentTaskEvent.GIVE_UP)
    assert table.ends_with_others(second)
    third.move(AgentTaskEvent.GIVE_UP)
    assert not table.ends_with_others(third), "the last one waits for nobody"


def test_ranks_of_a_gang_are_launched_as_each_is_ready_and_other_tasks_together(
    commands: Commands, line: Line
) -> None:
    ranks = [
        order(TaskKey("gang", n, 1), world_size=2, local_world_size=2, local_rank=n) for n in (0, 1)
    ]
    alone = [order(TaskKey(job_id, 0, 1)) for job_id in ("a", "b", "c")]
    answer = SyncAnswer(launch=[alone[0], *ranks, *alone[1:]])
    commands.carry_out(answer, started_at=read_boottime(), newest=True)
    launched = [said.key for said in line.said if isinstance(said, LaunchTask)]
    assert launched == [one.key for one in (*ranks, *alone)]
    assert line.gathered[-1] == len(alone)


@pytest.mark.parametrize("stops", [False, True])
def test_the_guardian_is_told_in_one_write_unless_a_stop_must_not_wait_for_launches(
    commands: Commands, line: Line, table: TaskTable, stops: bool
) -> None:
    keys = [TaskKey(job_id, 0, 1) for job_id in ("a", "b", "c")]
    launch = [order(key) for key in keys[:2]]
    commands.carry_out(SyncAnswer(launch=launch), started_at=read_boottime(), newest=True)
    line.gathered.clear()
    ended = table.get(keys[0])
    assert ended is not None
    ended.move(AgentTaskEvent.GIVE_UP)
    stop = PreemptOrder(key=keys[1], grace_seconds=15.0, cause=Cause.SIBLING_DRAINED)
    answer = SyncAnswer(acked=[keys[0]], launch=[order(keys[2])], preempt=[stop] if stops else [])
    commands.carry_out(answer, started_at=read_boottime(), newest=True)
    assert line.gathered == ([2, 1] if stops else [2])


def test_a_rank_that_fell_has_the_others_of_its_attempt_here_stopped(
    commands: Commands, line: Line, table: TaskTable
) -> None:
    """FALL-1: once, with the job's own grace; no other attempt, and none that is over."""
    keys = [TaskKey("gang", rank, 1) for rank in range(4)]
    others = [TaskKey("gang", 1, 2), TaskKey("else", 1, 1)]
    launch = [order(key, world_size=4, master_port=1) for key in (*keys, *others)]
    commands.carry_out(SyncAnswer(launch=launch), started_at=read_boottime(), newest=True)
    line.said.clear()
    line.gathered.clear()
    fallen, over = table.get(keys[0]), table.get(keys[3])
    assert fallen is not None
    assert over is not None
    fallen.fell = True
    fallen.move(AgentTaskEvent.END)
    over.move(AgentTaskEvent.END)
    commands.stop_others(fallen)
    grace = fallen.watch.settings.grace_seconds
    assert line.said == [StopTask(key=key, grace_seconds=grace) for key in keys[1:3]]
    assert line.gathered == [2], "at once, so that the guardian ends them together"
    assert b"stop_asked" in (table.folder_of(keys[1]) / "state.json").read_bytes()
    stops = [
        PreemptOrder(key=key, grace_seconds=grace, cause=Cause.SIBLING_DRAINED) for key in keys
    ]
    assert not commands.carry_out(
        SyncAnswer(preempt=stops[1:3]), started_at=read_boottime(), newest=True
    ), "the controller's order finds it done"
    assert table.ends_with_others(fallen)
