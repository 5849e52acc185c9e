"""Retries over the real wire: a job that fails and comes back, its chain, its policy, the kill
switch, a person's retry."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tests.unit.controller.conftest import FakeAgent, Served
from tests.waits import within

QUICK = {"max_retries": 3, "retry_delay": 0}


async def fail(agent: FakeAgent, **facts: Any) -> None:
    order = await agent.take()
    await agent.sync(agent.running(order))
    await agent.end(order, **(facts or {"exit_code": 1}))


async def until_waiting(served: Served, job_id: str, cause: str) -> dict[str, Any]:
    async with within(10):
        while (job := await served.job(job_id)).get("wait_cause") != cause:
            await asyncio.sleep(0.02)
    return job


async def kinds(served: Served, job_id: str) -> list[str]:
    page = (
        await served.call("GET", "/v1/events", params={"job": job_id, "kind": "job.retry_*"})
    ).json()
    return [event["kind"] for event in page["items"]]


async def metric(served: Served, line: str) -> float:
    page = (await served.http.get("/metrics")).text
    return sum(float(text.rsplit(" ", 1)[1]) for text in page.splitlines() if text.startswith(line))


# ---- transient → retry → success
async def test_a_transient_failure_is_retried_and_succeeds(
    served: Served, agent: FakeAgent
) -> None:
    job = await served.submit(retry=QUICK)
    first = await served.job(job["id"])
    assert first["retry_state"]["of"] == 4
    assert (first["retry_count"], first["max_retries"], first["retry_cause"]) == (0, 3, None)
    await fail(agent, exit_code=3)
    await fail(agent, exit_code=4)
    order = await agent.take()
    await agent.end(order, exit_code=0)
    done = await served.until(job["id"], "succeeded")
    assert done["retry_state"]["sentence"] == "attempt 3 of 4, succeeded"
    chain = done["retry_chain"]
    assert [(a["number"], a["parent"], a["retry_count"], a["outcome"]) for a in chain] == [
        (1, None, 0, "requeued"),
        (2, 1, 1, "requeued"),
        (3, 2, 2, "succeeded"),
    ]
    assert [a["charged_to"] for a in chain] == ["retries", "retries", None]
    assert await kinds(served, job["id"]) == [
        *"job.retry_scheduled job.retry_dispatched job.retry_scheduled".split(),
        *"job.retry_dispatched job.retry_succeeded".split(),
    ]
    assert await metric(served, 'holdfast_retry_scheduled_total{cause="nonzero_exit"}') == 2
    assert await metric(served, 'holdfast_drains_begun_total{cause="nonzero_exit"}') == 2
    assert await metric(served, "holdfast_retry_dispatched_total") == 2
    assert await metric(served, "holdfast_retry_succeeded_total") == 1
    assert await metric(served, "holdfast_retry_exhausted_total{") == 0


async def test_exhaustion(served: Served, agent: FakeAgent) -> None:
    job = await served.submit(retry={"max_retries": 1, "retry_delay": 0})
    await fail(agent)
    await fail(agent)
    done = await served.until(job["id"], "failed")
    assert done["retry_state"]["sentence"] == "attempt 2 of 2, failed"
    assert "its one retry is spent" in done["reason"]
    assert (await kinds(served, job["id"]))[-1] == "job.retry_exhausted"
    assert await metric(served, 'holdfast_retry_exhausted_total{cause="nonzero_exit"}') == 1


async def test_without_retries_a_failure_exhausts_nothing(served: Served, agent: FakeAgent) -> None:
    job = await served.submit()
    await fail(agent)
    done = await served.until(job["id"], "failed")
    assert done["retry_state"] == {
        "sentence": "attempt 1 of 1, failed",
        "attempt": 1,
        "of": 1,
        "retries_left": 0,
        "next_at": None,
        "held": None,
    }
    assert await kinds(served, job["id"]) == []
    assert await metric(served, "holdfast_retry_exhausted_total{") == 0


async def test_a_back_off_says_when_everywhere(served: Served, agent: FakeAgent) -> None:
    job = await served.submit(retry={"max_retries": 3, "retry_delay": 900})
    await fail(agent)
    waiting = await until_waiting(served, job["id"], "back_off")
    state = waiting["retry_state"]
    assert (state["attempt"], state["of"], state["retries_left"]) == (1, 4, 2)
    assert state["next_at"] == waiting["retry_at"]
    assert (waiting["retry_count"], waiting["max_retries"]) == (1, 3)
    assert waiting["retry_cause"] == "nonzero_exit"
    assert waiting["retry_policy"]["retry_delay"] == 900.0
    assert "next at " in state["sentence"]
    (first,) = (await served.call("GET", f"/v1/jobs/{job['id']}/attempts")).json()["items"]
    assert (first["next_at"], first["policy"]["retry_delay"]) == (waiting["retry_at"], 900.0)
    why = (await served.call("GET", f"/v1/jobs/{job['id']}/why")).json()
    assert why["lines"][0]["code"] == "back_off"
    assert "retry 1 of 3 after nonzero_exit" in why["summary"]
    assert await metric(served, "holdfast_retries_backing_off ") == 1


@pytest.mark.parametrize("delay", [0.0, 0.3])
async def test_a_short_delay_does_not_wait_for_the_next_look(
    served: Served, agent: FakeAgent, delay: float
) -> None:
    """The dispatcher looks every second; seven retries that each waited for it would take far
    longer than this."""
    job = await served.submit(retry={"max_retries": 7, "retry_delay": delay, "max_retry_delay": 60})
    for _ in range(7):
        await fail(agent)
    order = await agent.take()
    await agent.end(order, exit_code=0)
    done = await served.until(job["id"], "succeeded")
    page = (
        await served.call(
            "GET", "/v1/events", params={"job": job["id"], "kind": "job.retry_dispatched"}
        )
    ).json()
    late = sorted(event["data"]["waited_seconds"] for event in page["items"])
    assert len(late) == done["attempts"] - 1 == 7
    assert late[3] < 0.5, (
        late
    )  # the middle one: a loaded box may hold up some, a dispatcher that polls holds up most


# ---- filters
async def test_filters_by_cause_and_by_retries(served: Served, agent: FakeAgent) -> None:
    twice = await served.submit(retry=QUICK)
    await fail(agent, exit_code=1)
    await fail(agent, signal=9, oom=True)
    order = await agent.take()
    await agent.sync(agent.running(order))
    never = await served.submit()

    async def listed(**query: Any) -> list[str]:
        return [
            j["id"] for j in (await served.call("GET", "/v1/jobs", params=query)).json()["items"]
        ]

    assert await listed(retries_min=1) == [twice["id"]]
    assert await listed(retries_max=1) == [never["id"]]
    assert await listed(retries_min=2, retries_max=2) == [twice["id"]]
    assert await listed(retries_min=3) == []
    path = f"/v1/jobs/{twice['id']}/attempts"
    assert [
        a["number"]
        for a in (await served.call("GET", path, params={"cause": "oom_killed"})).json()["items"]
    ] == [2]
    assert (await served.call("GET", path, params={"cause": "nope"})).status_code == 422
    assert (await served.call("GET", "/v1/jobs", params={"retries_min": -1})).status_code == 422


# ---- policy and precedence
LAYERS = ("job", "project", "cluster")
SETTING = {"max_retries": ("max_retries", (5, 4, 3)), "retry_delay": ("retry_delay_seconds", (5.0, 4.0, 3.0)),
           "backoff": ("retry_backoff", ("exponential", "fixed", "exponential")),
           "max_retry_delay": ("max_retry_delay_seconds", (500.0, 400.0, None)),
           "jitter": ("retry_jitter", ("random", "deterministic", "none")),
           "emit_retry_events": ("retry_events", (False, True, False))}  # fmt: skip


@pytest.mark.parametrize("said", [c for n in range(4) for c in itertools.combinations(LAYERS, n)])
async def test_precedence_field_by_field(served: Served, said: tuple[str, ...]) -> None:
    """Each field goes by itself: field number n is named only by the layers that `said`, rotated by
    n."""
    layers: dict[str, dict[str, Any]] = {name: {} for name in LAYERS}
    wanted = {}
    for number, (field, (setting, values)) in enumerate(SETTING.items()):
        speaking = [LAYERS[(LAYERS.index(layer) + number) % 3] for layer in said]
        for layer, value in zip(LAYERS, values, strict=True):
            if layer in speaking:
                layers[layer][field if layer == "job" else setting] = value
        first = next((layer for layer in LAYERS if layer in speaking), None)
        wanted[field] = (first or "default", None if first is None else values[LAYERS.index(first)])
    await served.call("PATCH", "/v1/config", json={"set": layers["cluster"]})
    await served.call("PUT", "/v1/projects/vision", json={"set": layers["project"]})
    job = await served.submit(
        project="vision", **({"retry": layers["job"]} if layers["job"] else {})
    )
    view = (await served.call("GET", f"/v1/jobs/{job['id']}/policy", "read")).json()
    found = {f["field"]: f for f in view["fields"]}
    defaults = {
        "max_retries": 0,
        "retry_delay": 60.0,
        "backoff": "fixed",
        "max_retry_delay": 3600.0,
        "jitter": "none",
        "emit_retry_events": True,
        "backoff_multiplier": 2.0,
        "jitter_ratio": 0.25,
    }
    for field, (source, value) in wanted.items():
        assert found[field]["source"] == source, field
        assert found[field]["value"] == (defaults[field] if source == "default" else value)
        assert view["policy"][field] == found[field]["value"]
    assert found["eligible_causes"]["source"] == "default"
    assert "user_cancelled" not in found["eligible_causes"]["value"]
    assert found.keys() == {*wanted, "backoff_multiplier", "jitter_ratio", "eligible_causes"}


async def test_a_projects_policy_is_what_its_jobs_are_decided_by(
    served: Served, agent: FakeAgent
) -> None:
    await served.call(
        "PUT", "/v1/projects/vision", json={"set": {"max_retries": 1, "retry_delay_seconds": 0}}
    )
    mine, other = await served.submit(project="vision"), await served.submit(project="audio")
    for _ in range(3):
        await fail(agent)
    assert (await served.until(mine["id"], "failed"))["attempts"] == 2
    assert (await served.until(other["id"], "failed"))["attempts"] == 1


BAD: list[tuple[dict[str, Any], str]] = [
    ({"retry": {"max_retries": -1}}, "retry.max_retries"),
    ({"retry": {"retry_delay": 90_000}}, "retry.retry_delay"),
    ({"retry": {"backoff": "linear"}}, "retry.backoff"),
    ({"retry": {"jitter_ratio": 1.5}}, "retry.jitter_ratio"),
    ({"retry": {"max_retry_delay": 0}}, "retry.max_retry_delay"),
    ({"retry": {"retry_delay": 100, "max_retry_delay": 10}}, "retry.retry_delay"),
    ({"retry": {"eligible_causes": ["user_cancelled"]}}, "retry.eligible_causes"),
    ({"retry": {"eligible_causes": ["nonsense"]}}, "retry.eligible_causes"),
    ({"retry": {"retries": 3}}, "retry"),
    ({"retry": {"max_retries": 2}, "interactive": True}, "retry"),
    ({"no_progress_limit": 0}, "no_progress_limit"),
    ({"budget_reset_seconds": 0}, "budget_reset_seconds"),
    ({"runtime": "podman"}, "runtime"),
    ({"image": "--privileged"}, "image"),
]


@pytest.mark.parametrize(("spec", "field"), BAD, ids=[str(b[0]) for b in BAD])
async def test_a_bad_policy_is_refused_with_its_field(
    served: Served, spec: dict[str, Any], field: str
) -> None:
    answer = await served.call("POST", "/v1/jobs", json={"argv": ["x"], **spec})
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "validation_error"), problem
    assert problem["field"].startswith(field)
    batch = await served.call(
        "POST", "/v1/jobs/batch", json={"jobs": [{"argv": ["a"]}, {"argv": ["x"], **spec}]}
    )
    assert batch.json()["field"].startswith(f"jobs[1].{field}") or batch.json()["field"].startswith(
        f"jobs[...].{field}"
    )


@pytest.mark.parametrize(
    ("path", "method", "settings", "field"),
    [
        ("/v1/projects/p", "PUT", {"retry_on": "user_cancelled"}, "retry_on"),
        ("/v1/projects/p", "PUT", {"retry_rate_limit": 5}, "retry_rate_limit"),
        ("/v1/projects/p", "PUT", {"stall_timeout_seconds": 5}, "stall_timeout_seconds"),
        ("/v1/projects/p", "PUT", {"quota": "firm"}, "quota"),
        ("/v1/queues/q", "PUT", {"max_retries": 2}, "max_retries"),
        ("/v1/config", "PATCH", {"retry_multiplier": 0.5}, "retry_multiplier"),
        ("/v1/config", "PATCH", {"retry_on": "failures,validation_error"}, "retry_on"),
    ],
)
async def test_settings_of_retries_keep_to_their_lane(
    served: Served, path: str, method: str, settings: dict[str, Any], field: str
) -> None:
    answer = await served.call(method, path, json={"set": settings})
    assert (answer.status_code, answer.json()["field"]) == (422, field)


async def test_never_retried_whatever_the_policy_says(served: Served, agent: FakeAgent) -> None:
    job = await served.submit(retry=QUICK)
    order = await agent.take()
    await agent.sync(agent.running(order))
    await served.call("POST", f"/v1/jobs/{job['id']}/cancel")
    await agent.end(order, signal=15, stopped=True)
    assert (await served.until(job["id"], "cancelled"))["attempts"] == 1
    talk = await served.submit(interactive=True)
    await fail(agent)
    done = await served.until(talk["id"], "failed")
    assert "it was submitted to run once" in done["reason"]


# ---- the kill switch
@pytest.mark.parametrize("project", [None, "vision"])
async def test_the_kill_switch_holds_and_releases(
    served: Served, agent: FakeAgent, project: str | None
) -> None:
    path, method = (
        ("/v1/config", "PATCH") if project is None else (f"/v1/projects/{project}", "PUT")
    )
    backs_off = await served.submit(project="vision", retry={"max_retries": 2, "retry_delay": 1.5})
    await fail(agent)
    await until_waiting(served, backs_off["id"], "back_off")
    thrown = {"retries_enabled": False, "retries_hold_reason": "the registry is down"}
    assert (await served.call(method, path, json={"set": thrown})).status_code == 200
    held_at_decision = await served.submit(project="vision", retry=QUICK)
    await fail(agent)
    for job in (held_at_decision, backs_off):  # the second comes due under the switch
        waiting = await until_waiting(served, job["id"], "retries_held")
        whose = "the cluster" if project is None else "project vision"
        assert waiting["retry_state"]["held"] == whose
        why = (await served.call("GET", f"/v1/jobs/{job['id']}/why")).json()
        (line,) = [found for found in why["lines"] if found["code"] == "retries_held"]
        assert f"{whose} holds all retries: the registry is down" in line["message"]
        assert line["hint"] == "holdfast retries release" + (
            "" if project is None else " --project vision"
        )
    view = (await served.call("GET", "/v1/retries", "read")).json()
    assert (view["enabled"], view["held"], view["backing_off"], view["rate_limit"]) == (
        False,
        2,
        0,
        50.0,
    )
    assert view["projects"] == [{"project": "vision", "backing_off": 0, "held": 2}]
    assert [(h["project"], h["reason"]) for h in view["holds"]] == [
        (project, "the registry is down")
    ]
    config = (await served.call("GET", "/v1/config", params={"project": "vision"})).json()["items"]
    switch = next(e for e in config if e["name"] == "retries_enabled")
    assert (switch["value"], switch["source"]) == (
        False,
        "cluster" if project is None else "project",
    )
    assert await metric(served, "holdfast_retries_held ") == 2
    first = await served.submit(project="vision")  # a first attempt is no retry
    order = await agent.take()
    assert order.key.job_id == first["id"]
    await agent.end(order, exit_code=0)
    await served.call(method, path, json={"unset": list(thrown)})
    for _ in range(2):
        await agent.end(await agent.take(), exit_code=0)
    for job in (held_at_decision, backs_off):
        assert (await served.until(job["id"], "succeeded"))["attempts"] == 2
    assert (await served.call("GET", "/v1/retries")).json()["enabled"] is True


async def test_no_project_outvotes_the_clusters_kill_switch(
    served: Served, agent: FakeAgent
) -> None:
    await served.call("PUT", "/v1/projects/vision", json={"set": {"retries_enabled": True}})
    await served.call("PATCH", "/v1/config", json={"set": {"retries_enabled": False}})
    job = await served.submit(project="vision", retry=QUICK)
    await fail(agent)
    await until_waiting(served, job["id"], "retries_held")
    view = (await served.call("GET", f"/v1/jobs/{job['id']}/policy")).json()
    assert view["held"] == "the cluster"
    config = (await served.call("GET", "/v1/config", params={"project": "vision"})).json()["items"]
    switch = next(e for e in config if e["name"] == "retries_enabled")
    assert (switch["value"], switch["source"]) == (False, "cluster")


async def test_a_reason_is_one_printable_line(served: Served) -> None:
    answer = await served.call("PATCH", "/v1/config", json={"set": {"retries_hold_reason": "a\nb"}})
    assert (answer.status_code, answer.json()["field"]) == (422, "retries_hold_reason")


# ---- the rate limit
async def test_a_storm_goes_out_at_the_rate_limit(served: Served) -> None:
    # Slowly first, so that there is all the time to see it said.
    await served.call("PATCH", "/v1/config", json={"set": {"retry_rate_limit": 0.5}})
    many = FakeAgent(served, "big", cpu_slots=20)
    await many.register()
    jobs = [{"argv": ["x"], "retry": QUICK}] * 20
    assert (await served.call("POST", "/v1/jobs/batch", json={"jobs": jobs})).status_code == 201
    orders = {}  # one is given again until it is reported
    async with within(10):
        while len(orders) < 20:
            orders |= {order.key: order for order in (await many.sync(wait=1.0)).launch}
    for order in orders.values():
        await many.end(order, exit_code=1)
    async with within(20):
        limited = []
        while not limited:
            page = (await served.call("GET", "/v1/jobs", params={"state": "waiting"})).json()
            lines = (await served.call("GET", f"/v1/jobs/{page['items'][0]['id']}/why")).json()
            limited = [line for line in lines["lines"] if line["code"] == "retry_rate_limit"]
            await asyncio.sleep(0.05)
    assert "at most 0.5 retries start each second" in limited[0]["message"]
    await served.call("PATCH", "/v1/config", json={"set": {"retry_rate_limit": 5}})
    slow = len(await dispatched(served))
    async with within(20):
        while len(events := await dispatched(served)) < 20:
            await asyncio.sleep(0.05)
    assert len({e["job_id"] for e in events}) == len(events) == 20
    span = _seconds(events[-1]["at"]) - _seconds(events[slow]["at"])
    assert span >= (20 - slow - 5) / 5 - 1.0, "no faster than the limit, whatever the box is doing"


async def dispatched(served: Served) -> list[dict[str, Any]]:
    params = {"kind": "job.retry_dispatched"}
    found: list[dict[str, Any]] = (await served.call("GET", "/v1/events", params=params)).json()[
        "items"
    ]
    return found


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


# ---- a person's retry
async def test_a_persons_retry_says_whether_it_counts(served: Served, agent: FakeAgent) -> None:
    job = await served.submit(
        retry={"max_retries": 2, "retry_delay": 0, "eligible_causes": ["oom_killed"]}
    )
    path = f"/v1/jobs/{job['id']}/retry"
    await fail(agent)
    await served.until(job["id"], "failed")
    counted = (await served.call("POST", path, json={"counted": True})).json()
    assert (counted["reason"], counted["retries_charged"]) == (
        "retried by tester, counted as retry 1 of 2",
        1,
    )
    await fail(agent)
    await served.until(job["id"], "failed")
    assert (await served.call("POST", path, json={"counted": True})).json()["retries_charged"] == 2
    await fail(agent)
    await served.until(job["id"], "failed")
    refused = await served.call("POST", path, json={"counted": True})
    assert (refused.status_code, refused.json()["code"]) == (409, "retries_spent")
    assert "all 2 of its retries are spent" in refused.json()["detail"]
    anew = (await served.call("POST", path)).json()
    assert (anew["reason"], anew["retries_charged"]) == (
        "retried by tester, not counted: all its budgets begin anew",
        0,
    )
    again = await served.call("POST", path, json={"counted": True})
    assert (again.status_code, again.json()["code"]) == (409, "conflict"), "it has not ended"
    assert (await served.call("POST", path, json={"counts": True})).status_code == 422


async def test_a_counted_retry_after_the_limit_was_raised_goes_on_where_it_was(
    served: Served, agent: FakeAgent
) -> None:
    await served.call(
        "PUT", "/v1/projects/vision", json={"set": {"max_retries": 1, "retry_delay_seconds": 0}}
    )
    job = await served.submit(project="vision")
    path = f"/v1/jobs/{job['id']}/retry"
    for _ in range(2):
        await fail(agent)
    await served.until(job["id"], "failed")
    assert (await served.call("POST", path, json={"counted": True})).status_code == 409
    await served.call("PUT", "/v1/projects/vision", json={"set": {"max_retries": 2}})
    counted = (await served.call("POST", path, json={"counted": True})).json()
    assert (counted["reason"], counted["retries_charged"]) == (
        "retried by tester, counted as retry 2 of 2",
        2,
    )
    assert (await served.job(job["id"]))["retry_state"]["retries_left"] == 0
    await fail(agent)
    assert (await served.until(job["id"], "failed"))["attempts"] == 3


async def test_a_job_without_retries_refuses_a_counted_one(
    served: Served, agent: FakeAgent
) -> None:
    job = await served.submit()
    await fail(agent)
    await served.until(job["id"], "failed")
    refused = await served.call("POST", f"/v1/jobs/{job['id']}/retry", json={"counted": True})
    assert "it was given no retries" in refused.json()["detail"]


# ---- progress
async def test_no_progress_is_told_before_it_ends_the_job(served: Served, agent: FakeAgent) -> None:
    from holdfast.wire.agent import BeatReport

    job = await served.submit(retry={"max_retries": 9, "retry_delay": 0}, no_progress_limit=2)
    for _ in range(2):
        order = await agent.take()
        await agent.sync(agent.running(order, beat=BeatReport(step=7, total=100, age_seconds=0.0)))
        await agent.end(order, exit_code=1)
    order = await agent.take()
    await agent.sync(agent.running(order, beat=BeatReport(step=7, total=100, age_seconds=0.0)))
    why = (await served.call("GET", f"/v1/jobs/{job['id']}/why")).json()
    (line,) = [found for found in why["lines"] if found["code"] == "no_progress"]
    assert "its last attempt got no further than step 7; the job fails after 2" in line["message"]
    await agent.end(order, exit_code=1)
    done = await served.until(job["id"], "failed")
    assert "2 attempts in a row got no further than step 7" in done["reason"]
    assert done["retry_state"]["retries_left"] > 0
