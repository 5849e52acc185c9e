"""The views of the fleet in memory."""

from holdfast.core.records import OrchestratorStatus, WorkerHealth, WorkerPerformance
from holdfast.core.states import HostState, InstanceState, JobState, Outcome
from holdfast.moves.calls.host_calls import HostCalls
from holdfast.moves.fleet.pools import seconds_since
from holdfast.store.memory.state import MemoryHost, MemoryState


class MemoryFleetViews:
    """`FleetViews` in memory."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state

    async def read_status(self) -> OrchestratorStatus:
        s = self.state
        rented = {i.host_id: i.state for i in s.instances.values()}
        pairs = [(host, rented.get(host.id)) for host in s.hosts.values() if host.pool]
        queued = len(s.by_state[JobState.QUEUED])
        serving = any(host.state is HostState.ACTIVE for host in s.hosts.values())
        over = (None, InstanceState.GONE)
        failed = any(
            h.state is HostState.ERROR
            or (h.flagged_dead_at is not None and h.state is not HostState.TERMINATED)
            for h in s.hosts.values()
        )
        health = "degraded" if failed else "waiting" if queued and not serving else "ok"
        return OrchestratorStatus(
            queued=queued,
            spawning=sum(h.state in (HostState.SPAWNING, HostState.PREFLIGHT) for h, _ in pairs),
            active=sum(host.state is HostState.ACTIVE for host, _ in pairs),
            terminating=sum(
                h.state is HostState.DRAINING or i is InstanceState.ENDING for h, i in pairs
            ),
            total=sum(h.state is not HostState.TERMINATED or i not in over for h, i in pairs),
            health=health,
        )

    async def list_health(self) -> list[WorkerHealth]:
        hosts = [h for h in self.state.hosts.values() if h.state is HostState.ACTIVE]
        return [self._judge(host) for host in sorted(hosts, key=lambda h: h.name)]

    def _judge(self, host: MemoryHost) -> WorkerHealth:
        s, now = self.state, self.state.at(None)
        reading = s.telemetry.get(host.id)
        age = seconds_since(now, host.heartbeat_at)
        stale = None if reading is None else seconds_since(now, reading.at)
        verdict = "stale telemetry" if stale is not None and stale > 120 else "ok"
        verdict = "silent" if age > 300 else verdict
        gpus = () if reading is None else reading.gpus
        return WorkerHealth(
            host=host.name,
            heartbeat_age=age,
            task=min((t.job_id for t in s.live_tasks(host.id)), default=None),
            vram_used=sum(g.memory_used_bytes or 0 for g in gpus) if gpus else None,
            vram_total=sum(g.memory_total_bytes or 0 for g in gpus) if gpus else None,
            vram_age=stale,
            verdict="dead" if host.flagged_dead_at is not None else verdict,
        )

    async def list_performance(self) -> list[WorkerPerformance]:
        hosts = [h for h in self.state.hosts.values() if h.state is not HostState.TERMINATED]
        return [self._count(host) for host in sorted(hosts, key=lambda h: h.name)]

    def _count(self, host: MemoryHost) -> WorkerPerformance:
        ended = [
            a
            for chain in self.state.attempts.values()
            for a in chain
            if host.id in a.host_ids and a.started_at is not None and a.ended_at is not None
            if not self.state.jobs[a.job_id].spec.executor
        ]
        calls = self.state.host_calls.get(host.id, HostCalls())
        done = sum(a.outcome is Outcome.SUCCEEDED for a in ended)
        failed = sum(a.outcome is not Outcome.SUCCEEDED and a.cause is not None for a in ended)
        seconds = [
            (a.ended_at - a.started_at).total_seconds()
            for a in ended
            if a.ended_at is not None and a.started_at is not None
        ]
        done, failed = done + calls.done, failed + calls.failed
        count = len(seconds) + calls.done + calls.failed
        return WorkerPerformance(
            host=host.name,
            done=done,
            failed=failed,
            success_rate=done / (done + failed) if done + failed else None,
            mean_seconds=(sum(seconds) + calls.seconds) / count if count else None,
            uptime=seconds_since(self.state.at(None), host.registered_at),
        )
