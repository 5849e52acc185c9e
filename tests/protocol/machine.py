"""The random user, the random failure and the random network: one hypothesis state machine over
`World`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from holdfast.core.causes import Cause, Watchdog
from holdfast.core.endings.decide import Policy
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import HostState, JobState
from holdfast.errors import Conflict
from holdfast.moves.values import HostSync
from holdfast.wire.guardian import TaskEnded
from tests.protocol.drives import MakeDrive, MemoryDrive
from tests.protocol.host import Host, Request
from tests.protocol.world import Plan, World

INDEX = st.integers(0, 7)
LINKS = "ok ok mess mess lose_request lose_answer hold_request hold_answer poll".split()
MEMBER_ENDS = ["killed", "killed", "give_up", "give_up", "trip", "ok", "start_error", "broken"]
ENDS = "give_up ok ok ok exit oom trip time_limit unkillable start_error".split()
WAITS = [0.5, 0.5, 2.0, 2.0, 6.0, 16.5, 33.0]
DATA = TaskFacts(exit_code=0)


class Protocol(RuleBasedStateMachine):
    """One run. After the last step the chaos stops and everything must come to an end."""

    drive: ClassVar[Sequence[MakeDrive]] = (MemoryDrive,)

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None

    @property
    def w(self) -> World:
        assert self.world is not None
        return self.world

    @initialize(
        rates=st.lists(st.sampled_from([0.99, 1.0, 1.01]), min_size=2, max_size=4),
        slots=st.integers(1, 3),
        gpus=st.integers(0, 2),
        retries=st.integers(0, 2),
        trips=st.integers(0, 2),
        infra=st.integers(1, 4),
        delay=st.sampled_from([0.0, 3.0, 20.0]),
        seed=st.integers(0, 2**16),
        jobs=st.lists(st.integers(1, 4), min_size=1, max_size=2),
        supervised=st.booleans(),
    )
    def begin(
        self,
        rates: list[float],
        slots: int,
        gpus: int,
        retries: int,
        trips: int,
        infra: int,
        delay: float,
        seed: int,
        jobs: list[int],
        supervised: bool,
    ) -> None:
        retry = RetryPolicy(max_retries=retries, retry_delay=delay, jitter="random")
        policy = Policy(retry=retry, watchdog_cap=trips, infra_cap=infra, start_failure_limit=3)
        self.world = World(
            rates=rates, slots=slots, gpus=gpus, policy=policy, seed=seed, drive=self.drive[0]
        )
        for host in self.w.hosts:
            host.boot()
        for tasks in jobs:
            self.w.submit(tasks=tasks, gpus=0, late=False, priority=50, supervised=supervised)
        self.w.wait(2.0)

    # ---- picking

    def pick_host(self, i: int, *, up: bool | None = None) -> Host | None:
        hosts = [h for h in self.w.hosts if up is None or h.up is up]
        return hosts[i % len(hosts)] if hosts else None

    def pick_live(self, i: int) -> tuple[Host, TaskKey] | None:
        live = [
            (h, p.key)
            for h in self.w.hosts
            if h.up
            for p in h.processes.values()
            if p.executes(self.w.t)
        ]
        return live[i % len(live)] if live else None

    def pick_job(self, i: int) -> str:
        return f"job-{1 + i % self.w.count:04d}"

    # ---- time and the network

    @rule(seconds=st.sampled_from(WAITS))
    def wait(self, seconds: float) -> None:
        self.w.wait(seconds)

    @rule(i=INDEX, mode=st.sampled_from(LINKS))
    def change_link(self, i: int, mode: str) -> None:
        host = self.pick_host(i)
        assert host is not None
        self.w.links[host.id] = mode

    @precondition(lambda self: self.world is not None and self.world.held)
    @rule(i=st.integers(0, 23), keep=st.booleans())
    def deliver(self, i: int, keep: bool) -> None:
        self.w.turn_hosts()
        self.w.deliver(i, keep=keep)
        self.w.check()

    @precondition(
        lambda self: self.world is not None and self.world.announced and not self.world.outage
    )
    @rule(i=INDEX)
    def deliver_registration(self, i: int) -> None:
        """A registration comes twice, the second time late: perhaps from an incarnation that is
        over."""
        w = self.w
        w.turn_hosts()
        request = w.announced[i % len(w.announced)]
        answered, answer = w.serve(request, poll=False)
        if answered:
            w.answer(request, answer)

    @rule(i=INDEX)
    def one_call(self, i: int) -> None:
        host = self.pick_host(i)
        assert host is not None
        self.w.turn_hosts()
        self.w.call(host)

    @rule(
        i=INDEX,
        mode=st.sampled_from(["lose_request", "lose_answer", "hold_request", "hold_answer"]),
        seconds=st.sampled_from([14.0, 16.0, 20.0, 33.0]),
        after=st.sampled_from(["ok", "mess"]),
    )
    def fall_silent(self, i: int, mode: str, seconds: float, after: str) -> None:
        """A partition that lasts about as long as a lease, while the rest of the world goes on."""
        host = self.pick_host(i)
        assert host is not None
        self.w.links[host.id] = mode
        self.w.wait(seconds)
        self.w.links[host.id] = after

    @rule(i=INDEX, delay=st.sampled_from([3.0, 6.0]))
    def answer_slowly(self, i: int, delay: float) -> None:
        """LEASE-1: the last answer takes seconds to come, and then the host hears nothing for a
        whole lease."""
        w, host = self.w, self.pick_host(i, up=True)
        if host is None or w.outage:
            return
        w.turn_hosts()
        held = list(w.held)
        w.links[host.id] = "hold_answer"
        w.call(host)
        slow = [m for m in w.held if not any(m is kept for kept in held)]
        w.links[host.id] = "lose_request"
        w.wait(delay)
        for message in slow:
            w.answer(message.request, message.answer)
        w.wait(18.0)
        w.links[host.id] = "ok"

    @rule(i=INDEX, seconds=st.sampled_from([0.5, 3.0]), register=st.booleans())
    def hear_the_dead(self, i: int, seconds: float, register: bool) -> None:
        """FENCE-1, LEASE-3: a call of an incarnation that is over arrives when the next one has
        work already."""
        w, host = self.w, self.pick_host(i, up=True)
        if host is None or w.outage or not (host.agent_up and host.registered):
            return
        w.turn_hosts()
        last = host.make_request(w.t)
        if register:
            last = Request(
                last.host_id, last.incarnation, last.agent, last.seq, last.started_at, register=True
            )
        host.crash()
        host.boot()
        w.links[host.id] = "ok"
        w.wait(seconds)
        w.serve(last, poll=False)
        w.check()

    @rule(i=INDEX)
    def answer_overtaken(self, i: int) -> None:
        """An answer is slow: what it launches has been launched by a newer one, ended and
        acknowledged when it comes."""
        w, host = self.w, self.pick_host(i, up=True)
        if host is None or w.outage:
            return
        w.turn_hosts()
        before, held = w.links[host.id], list(w.held)
        w.links[host.id] = "hold_answer"
        w.call(host)
        slow = [m for m in w.held if not any(m is kept for kept in held)]
        w.links[host.id] = "ok"
        w.call(host)
        for process in list(host.processes.values()):
            if process.live:
                host.exit(process.key, TaskEnded(key=process.key, exit_code=0))
        w.call(host)
        for message in slow:
            w.answer(message.request, message.answer)
        w.links[host.id] = before
        w.check()

    # ---- hosts

    @rule(i=INDEX)
    def crash(self, i: int) -> None:
        host = self.pick_host(i, up=True)
        if host is not None:
            host.crash()
            self.w.check()

    @rule(i=INDEX)
    def boot(self, i: int) -> None:
        host = self.pick_host(i, up=False)
        if host is not None:
            host.boot()

    @rule(i=INDEX)
    def reboot(self, i: int) -> None:
        host = self.pick_host(i, up=True)
        if host is not None:
            host.crash()
            host.boot()
            self.w.call(host)
            self.w.check()

    @rule(i=INDEX)
    def restart_agent(self, i: int) -> None:
        host = self.pick_host(i, up=True)
        if host is None:
            return
        if host.agent_up:
            host.kill_agent()
        else:
            host.start_agent()

    @rule(i=INDEX)
    def shut_down(self, i: int) -> None:
        host = self.pick_host(i, up=True)
        if host is not None and host.agent_up:
            host.shut_down(self.w.t)

    @rule(
        i=INDEX, agent=st.sampled_from(["hasty", "hasty", "dies", "dies first"]), call=st.booleans()
    )
    def tell_all(self, i: int, agent: str, call: bool) -> None:
        """TERM reaches guardian and agent at once (scancel, a service manager, killall)."""
        host = self.pick_host(i, up=True)
        if host is None or not host.agent_up:
            return
        self.w.turn_hosts()
        if agent == "dies first":
            host.kill_agent()
            host.start_agent()
        host.shut_down(self.w.t, hasty=agent == "hasty")
        if agent == "dies":
            host.kill_agent()
            host.start_agent()
        if call:
            self.w.call(host)
        self.w.check()

    @rule(i=INDEX, how=st.sampled_from(ENDS))
    def end_task(self, i: int, how: str) -> None:
        self.w.turn_hosts()
        found = self.pick_live(i)
        if found is None:
            return
        host, key = found
        if how == "trip":
            host.trip(key, Watchdog.STALL, self.w.t)
        elif how == "time_limit":
            host.trip(key, Watchdog.TIME_LIMIT, self.w.t)
        elif how == "unkillable":
            host.exit(key, TaskEnded(key=key, unkillable=True, survivors=[7]))
        elif how == "start_error":
            host.exit(key, TaskEnded(key=key, start_error="no such program"))
        elif how == "give_up":
            host.exit(key, TaskEnded(key=key, exit_code=72))
        elif how == "oom":
            host.exit(key, TaskEnded(key=key, signal=9, oom=True))
        else:
            host.exit(key, TaskEnded(key=key, exit_code=0 if how == "ok" else 3))

    @precondition(lambda self: self.world is not None and self.world.truth.supervised)
    @rule(
        i=INDEX,
        how=st.sampled_from(MEMBER_ENDS),
        fate=st.sampled_from(["", "", "reboot", "crash", "silent"]),
        seconds=st.sampled_from([0.0, 0.5, 2.0, 18.0]),
    )
    def fell_member(self, i: int, how: str, fate: str, seconds: float) -> None:
        """A member of a supervised job falls by itself, or its host does; perhaps one that stands
        in already."""
        w = self.w
        w.turn_hosts()
        live = self.list_members()
        if not live:
            return
        host, key = live[i % len(live)]
        if fate == "silent":
            w.links[host.id] = "lose_request"
        elif fate:
            host.crash()
            if fate == "reboot":
                host.boot()
        elif how == "trip":
            host.trip(key, Watchdog.STALL, w.t)
        else:
            ends = {
                "killed": TaskEnded(key=key, signal=9), "give_up": TaskEnded(key=key, exit_code=72), "ok": TaskEnded(key=key, exit_code=0),
                "start_error": TaskEnded(key=key, start_error="no such program"),
                "broken": TaskEnded(key=key, unkillable=True, survivors=[7]),
            }  # fmt: skip
            host.exit(key, ends[how])
        w.wait(seconds)
        if fate == "silent":
            w.links[host.id] = "ok"

    def list_members(self) -> list[tuple[Host, TaskKey]]:
        """Live members of supervised jobs, and where they are."""
        w = self.w
        return [
            (h, p.key)
            for h in w.hosts
            if h.up
            for p in h.processes.values()
            if p.key.job_id in w.truth.supervised and p.key.rank > 0 and p.executes(w.t)
        ]

    # ---- controllers

    @rule(leaders=st.integers(1, 2))
    def restart_controllers(self, leaders: int) -> None:
        """LEASE-4: a new leader, or two that each believe to lead, one of them for long."""
        w = self.w
        w.leading_since = [w.now(), *w.leading_since][:leaders]
        w.polls.clear()

    @rule()
    def run_second_leader(self) -> None:
        self.w.turn_hosts()
        self.w.run_loops(leader=1)

    @rule()
    def toggle_outage(self) -> None:
        w = self.w
        w.outage = not w.outage
        if not w.outage:
            w.leading_since = [w.now()]
        w.polls.clear()

    @rule()
    def read_plan(self) -> None:
        """A leader reads and is frozen before it writes."""
        w = self.w
        w.plans.append(Plan(w.read_placements(), w.read_completions(), w.read_replacements()))
        del w.plans[:-4]

    @precondition(lambda self: self.world is not None and self.world.plans)
    @rule(i=INDEX)
    def write_plan(self, i: int) -> None:
        w = self.w
        w.turn_hosts()
        plan = w.plans[i % len(w.plans)]
        w.write_completions(plan.completions)
        w.write_replacements(plan.replacements)
        w.write_placements(plan.placements)

    @rule(i=INDEX, later=st.booleans())
    def freeze_before_completing(self, i: int, later: bool) -> None:
        """A leader reads a drain that is ready and is frozen. It writes when the next attempt
        drains, or whenever `write_plan` says."""
        w = self.w
        w.turn_hosts()
        found = self.pick_live(i)
        if found is None:
            return
        job_id = found[1].job_id
        self.fail_job(job_id)
        plan = Plan((), w.read_completions())
        if later:
            w.plans.append(plan)
            return
        w.run_loops()
        w.wait(1.5)
        self.fail_job(job_id)
        w.write_completions(plan.completions)

    @precondition(lambda self: self.world is not None and self.world.truth.supervised)
    @rule(i=INDEX)
    def freeze_before_replacing(self, i: int) -> None:
        """A leader reads a fall and is frozen. It writes when the rank's next life has fallen
        (FENCE-1)."""
        w = self.w
        w.turn_hosts()
        live = self.list_members()
        if not live:
            return
        host, key = live[i % len(live)]
        host.exit(key, TaskEnded(key=key, signal=9))
        w.call(host)
        seen = w.read_replacements()
        w.run_loops()
        w.wait(2.0)
        for other, again in self.list_members():
            if (again.job_id, again.rank) == (key.job_id, key.rank):
                other.exit(again, TaskEnded(key=again, signal=9))
                w.call(other)
        w.write_replacements(seen)

    def fail_job(self, job_id: str) -> None:
        """Every task of the job that runs exits with 3, and its host says so."""
        for host in self.w.hosts:
            for process in list(host.processes.values()):
                if host.up and process.key.job_id == job_id and process.executes(self.w.t):
                    host.exit(process.key, TaskEnded(key=process.key, exit_code=3))
            self.w.call(host)

    @precondition(lambda self: self.world is not None and self.world.count < 6)
    @rule(
        tasks=st.integers(2, 4),
        steps=st.integers(0, 6),
        i=INDEX,
        seconds=st.sampled_from([0.5, 2.0, 16.5]),
        what=st.sampled_from(
            ["cancel", "preempt", "crash", "reboot", "agent", "silent", "slow", "leader"]
        ),
        supervised=st.booleans(),
    )
    def meet_at_the_barrier(
        self, tasks: int, steps: int, i: int, seconds: float, what: str, supervised: bool
    ) -> None:
        """GANG-1: some ranks have their places, others not, or all have and some were told; then
        something happens."""
        w = self.w
        job_id = w.submit(tasks=tasks, gpus=0, late=False, priority=90, supervised=supervised)
        w.turn_hosts()
        w.run_loops()
        for step in range(steps):
            w.call(w.hosts[(i + step) % len(w.hosts)])
        host = w.hosts[(i + steps) % len(w.hosts)]
        if what == "cancel":
            w.run(w.store.jobs.cancel_job(job_id, "not needed", hard=False, now=w.now()))
        elif what == "preempt":
            w.run(w.store.jobs.drain_job(job_id, Cause.PREEMPTED, "room is needed", now=w.now()))
        elif what in ("crash", "reboot") and host.up:
            host.crash()
            if what == "reboot":
                host.boot()
        elif what == "agent" and host.up and host.agent_up:
            host.kill_agent()
            host.start_agent()
        elif what in ("silent", "slow"):
            w.links[host.id] = "lose_request" if what == "silent" else "hold_answer"
        elif what == "leader":
            w.leading_since = [w.now()]
            w.polls.clear()
        w.check()
        w.wait(seconds)
        w.links[host.id] = "ok"

    @precondition(lambda self: self.world is not None and self.world.count < 6)
    @rule(
        i=INDEX,
        ends=st.integers(1, 4),
        what=st.sampled_from(
            ["nothing", "pause", "drain", "important", "cancel", "reboot", "agent", "silent"]
        ),
        mode=st.sampled_from(["ok", "ok", "hold_request", "hold_answer", "lose_answer", "mess"]),
        seconds=st.sampled_from([0.5, 0.5, 2.0, 4.0, 16.5]),
        again=st.booleans(),
    )
    def take_from_a_deep_queue(
        self, i: int, ends: int, what: str, mode: str, seconds: float, again: bool
    ) -> None:
        """TAKE-1: a host takes from a deep queue while its tasks end; then something happens to the
        host, or to what it has just taken."""
        w = self.w
        if w.outage:
            return
        host = w.hosts[i % len(w.hosts)]
        before, w.links[host.id] = w.links[host.id], "ok"
        if host.up and not host.agent_up:
            host.start_agent()
        w.submit_crowd(10 + host.slots * len(w.hosts))
        w.wait(1.0)
        for _ in range(ends):  # each makes room
            w.turn_hosts()
            live = [p.key for p in host.processes.values() if host.up and p.executes(w.t)]
            if live:
                host.exit(live[0], TaskEnded(key=live[0], exit_code=0))
            w.call(host)
        w.links[host.id] = mode
        if what == "pause":
            w.run(w.store.settings.pause_queue("cpu", "asked", hard=False, now=w.now()))
        elif what == "drain":
            with contextlib.suppress(Conflict):
                w.run(w.store.hosts.move_host(host.id, "drain", "asked", now=w.now()))
        elif what == "important":
            w.submit(tasks=4, gpus=0, late=False, priority=90)
            w.run_loops()
        elif what == "cancel":
            for key in list(host.processes):
                w.cancel(key.job_id)
        elif what == "reboot" and host.up:
            host.crash()
            host.boot()
        elif what == "silent":
            w.links[host.id] = "lose_request"
        w.check()
        w.wait(seconds)
        if what == "agent" and host.up and host.agent_up:
            host.kill_agent()
            host.start_agent()
            w.links[host.id] = "ok"
            w.wait(0.5)  # it is offered again what the agent before it had not begun
            for process in list(host.processes.values())[:1]:
                if process.live:
                    host.exit(process.key, TaskEnded(key=process.key, exit_code=0))
            w.turn_hosts()
        w.links[host.id] = before
        if again and what == "pause":
            w.run(w.store.settings.resume_queue("cpu", now=w.now()))
        while w.held and again:  # what was under way arrives late
            w.turn_hosts()
            w.deliver(0, keep=False)
            w.check()

    @precondition(lambda self: self.world is not None and self.world.count < 5)
    @rule(tasks=st.integers(1, 4))
    def overtake(self, tasks: int) -> None:
        """A frozen leader's placement wakes after another job was given the same room (ADMIT-2)."""
        w = self.w
        w.turn_hosts()
        w.submit(tasks=1, gpus=0, late=False, priority=50)
        plan = Plan(w.read_placements())
        w.submit(tasks=tasks, gpus=0, late=False, priority=90)
        w.run_loops()
        w.write_placements(plan.placements)

    # ---- people

    @rule(on=st.booleans(), everywhere=st.booleans())
    def switch_retries(self, on: bool, everywhere: bool) -> None:
        """RETRY-6: the kill switch, of the cluster or of the project."""
        self.w.switch_retries(on, everywhere=everywhere)
        self.w.check()

    @precondition(lambda self: self.world is not None and self.world.count < 6)
    @rule(
        tasks=st.integers(1, 4),
        gpus=st.sampled_from([0, 0, 1]),
        late=st.booleans(),
        priority=st.sampled_from([50, 90]),
        preemptible=st.booleans(),
        supervised=st.booleans(),
    )
    def submit(
        self, tasks: int, gpus: int, late: bool, priority: int, preemptible: bool, supervised: bool
    ) -> None:
        self.w.submit(
            tasks=tasks,
            gpus=gpus,
            late=late,
            priority=priority,
            preemptible=preemptible,
            supervised=supervised,
        )
        self.w.check()

    @rule(i=INDEX, hard=st.booleans())
    def cancel(self, i: int, hard: bool) -> None:
        self.w.run(
            self.w.store.jobs.cancel_job(
                self.pick_job(i), "not needed", hard=hard, now=self.w.now()
            )
        )
        self.w.check()

    @rule(i=INDEX)
    def preempt(self, i: int) -> None:
        self.w.run(
            self.w.store.jobs.drain_job(
                self.pick_job(i), Cause.PREEMPTED, "room is needed", now=self.w.now()
            )
        )
        self.w.check()

    @rule(i=INDEX)
    def revive(self, i: int) -> None:
        try:
            self.w.run(self.w.store.jobs.revive_job(self.pick_job(i), "again", now=self.w.now()))
        except Conflict:
            return
        self.w.check()

    @rule(pause=st.booleans(), hard=st.booleans())
    def pause(self, pause: bool, hard: bool) -> None:
        if pause:
            self.w.run(
                self.w.store.settings.pause_queue("cpu", "asked", hard=hard, now=self.w.now())
            )
        else:
            self.w.run(self.w.store.settings.resume_queue("cpu", now=self.w.now()))
        self.w.check()

    @rule(
        i=INDEX,
        event=st.sampled_from(["drain", "undrain", "quarantine", "release", "terminate"]),
        hard=st.booleans(),
        deadline=st.sampled_from([None, 4.0]),
    )
    def move_host(self, i: int, event: str, hard: bool, deadline: float | None) -> None:
        """An operator's word. It is true: a host is called gone only when it is off (LEASE-3)."""
        host = self.pick_host(i, up=False if event == "terminate" else None)
        if host is None:
            return
        self.w.turn_hosts()
        try:
            seconds = deadline if event == "drain" and not hard else None
            self.w.run(
                self.w.store.hosts.move_host(
                    host.id, event, "asked", hard=hard, deadline_seconds=seconds, now=self.w.now()
                )
            )
        except Conflict:
            return
        self.w.check()

    @precondition(lambda self: self.world is not None and self.world.truth.launched)
    @rule(
        i=st.integers(0, 31),
        host=INDEX,
        ok=st.booleans(),
        shift=st.sampled_from([0, 0, -1, 1]),
        what=st.sampled_from(["live", "ended", "claimed"]),
    )
    def stale_report(self, i: int, host: int, ok: bool, shift: int, what: str) -> None:
        """FENCE-1: a report under a key that is not this host's changes nothing of the job."""
        w = self.w
        keys = list(w.truth.launched)
        old = keys[i % len(keys)]
        key = TaskKey(old.job_id, old.rank, max(0, old.epoch + shift))
        who = self.pick_host(host)
        assert who is not None
        held = {
            (t.key, t.host_id, t.incarnation)
            for ts in w.all_tasks.values()
            for t in ts
            if t.state.holds_lease
        }
        row = w.run(w.store.hosts.get_host(who.id))
        if (key, who.id, row.incarnation) in held:
            return
        before = self.view_of(key.job_id)
        facts = TaskFacts(exit_code=0) if ok else TaskFacts(exit_code=1)
        sync = HostSync(
            host_id=who.id,
            incarnation=row.incarnation,
            live=(key,) if what == "live" else (),
            started=(key,) if what == "live" else (),
            ended=((key, facts),) if what == "ended" else (),
            claimed=((key, 4711),) if what == "claimed" else (),
        )
        found = w.run(w.store.leases.sync_hosts([sync], now=w.now()))[0]
        assert self.view_of(key.job_id) == before, (
            f"FENCE-1: a stale report of {key} changed the job"
        )
        assert key not in [k for k, _ in found.renewed], (
            f"FENCE-1: a stale report of {key} renewed a lease"
        )
        if what != "ended":
            assert key in found.lost
        w.check()

    def view_of(self, job_id: str) -> Any:
        """A job, its attempts and its tasks, but for the offers any sync may make."""
        w, s = self.w, self.w.store
        tasks = [
            (t.key, t.state, t.facts, t.started_at, t.ended_at)
            for t in w.run(s.jobs.list_tasks(job_id))
        ]
        return w.run(s.jobs.get_job(job_id)), w.run(s.jobs.list_attempts(job_id)), tasks

    # ---- the end

    def teardown(self) -> None:
        """After the last step everything comes to an end; an error, of a step or of the end, gets
        the run's transcript."""
        if self.world is None:
            return
        error = sys.exc_info()[1]
        if error is not None:
            self.world.transcript.explain(error)
        try:
            self.come_to_an_end(self.world)
        except Exception as late:
            self.world.transcript.explain(late)
            raise
        finally:
            self.world.drive.close()

    def come_to_an_end(self, w: World) -> None:
        """Liveness: the network heals, operators let go, hosts come back but for those that never
        will."""
        w.outage, w.leading_since, w.polls = False, [w.now()], {}
        for everywhere in (True, False):
            w.switch_retries(True, everywhere=everywhere)
        gone = {h.id for h in w.hosts[1:] if not h.up and w.random.random() < 0.5}
        w.run(w.store.settings.resume_queue("cpu", now=w.now()))
        for host in w.hosts:
            w.links[host.id] = "ok"
            if host.up and not host.agent_up:
                host.start_agent()
        lift = {HostState.DRAINING: "undrain", HostState.QUARANTINED: "release"}
        for _ in range(90):
            for row in w.run(w.store.hosts.list_hosts()):
                if row.state in lift:
                    w.run(w.store.hosts.move_host(row.id, lift[row.state], "let go", now=w.now()))
            for host in w.hosts:
                if not host.up and host.id not in gone:
                    host.boot()
                for process in list(host.processes.values()):
                    if process.live and w.t - process.started_at > 3.0 and process.kill_due is None:
                        host.exit(process.key, TaskEnded(key=process.key, exit_code=0))
            pause = self.find_pause(w, gone)
            w.wait(pause, step_seconds=pause)
            if self.is_quiet(w, gone):
                break
        self.check_ended(w, gone)

    def has_room(self, w: World, job_id: str, gone: set[str]) -> bool:
        job = w.run(w.store.jobs.get_job(job_id))
        hosts = [h for h in w.hosts if h.id not in gone]
        per_host = [min(h.slots, h.gpus // job.gpus if job.gpus else h.slots) for h in hosts]
        return sum(per_host) >= job.tasks

    def find_pause(self, w: World, gone: set[str]) -> float:
        """A second; or, where all that is left waits for its time, the rest of that. What is parked
        is let go."""
        left = [j for j in w.jobs() if not j.state.terminal and self.has_room(w, j.id, gone)]
        for job in left:
            if job.wait_cause == "parked":
                w.run(w.store.jobs.revive_job(job.id, "let go", now=w.now()))
        dues = [job.wait_until for job in left if job.state is JobState.WAITING]
        if not dues or len(dues) < len(left):
            return 1.0
        return max([1.0, *((due - w.now()).total_seconds() for due in dues if due is not None)])

    def is_quiet(self, w: World, gone: set[str]) -> bool:
        over = all(
            j.state.terminal or (j.state is JobState.QUEUED and not self.has_room(w, j.id, gone))
            for j in w.jobs()
        )
        return over and not any(h.processes or h.stubs for h in w.hosts if h.up)

    def check_ended(self, w: World, gone: set[str]) -> None:
        for job in w.jobs():
            if self.has_room(w, job.id, gone):
                assert job.state.terminal, (
                    f"liveness: {job.id} is {job.state} ({job.reason}), {gone} are "
                    f"gone\n{w.truth.explain(job.id)}\n"
                    f"{w.run(w.store.jobs.list_tasks(job.id))}"
                )
                assert not w.run(w.store.jobs.list_tasks(job.id)), "liveness: a task row is left"
            else:
                assert job.state in (
                    JobState.QUEUED,
                    JobState.SUCCEEDED,
                    JobState.FAILED,
                    JobState.CANCELLED,
                ), f"liveness: {job.id} has no room and is {job.state}\n{w.truth.explain(job.id)}"
        for host in w.hosts:
            left = host.processes or host.stubs
            assert not host.up or not left, f"liveness: {host.id} holds what the controller forgot"
