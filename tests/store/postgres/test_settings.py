"""What only the store on PostgreSQL does: settings."""

from __future__ import annotations

import pytest

from holdfast.errors import Conflict, NotFound, ValidationError
from tests.store.rig import Rig


async def test_settings_and_queues(rig: Rig) -> None:
    before = await rig.store.settings.read_settings()
    assert before.cluster == {}
    assert before.queues == {"cpu": {}, "gpu": {}}
    after = await rig.store.settings.write_cluster_settings(
        {"grace_seconds": "20s", "watchdog_cap": 5}, now=rig.now
    )
    assert after > before.revision
    assert (
        await rig.store.settings.write_cluster_settings({"watchdog_cap": 5}, now=rig.now) == after
    )  # nothing new
    assert (await rig.store.settings.read_settings()).cluster == {
        "grace_seconds": 20.0,
        "watchdog_cap": 5,
    }
    await rig.store.settings.write_cluster_settings({}, ["watchdog_cap"], now=rig.now)
    assert (await rig.store.settings.read_settings()).cluster == {"grace_seconds": 20.0}
    with pytest.raises(ValidationError):
        await rig.store.settings.write_cluster_settings({"no_such": 1}, now=rig.now)
    with pytest.raises(ValidationError):
        await rig.store.settings.put_queue("gpu", {"history_days": 1}, now=rig.now)
    queue = await rig.store.settings.put_queue("mine", {"time_limit_seconds": None}, now=rig.now)
    assert (queue.settings, queue.queued) == ({"time_limit_seconds": None}, 0)
    job_id = await rig.submit(queue="mine")
    assert (await rig.store.settings.get_queue("mine")).queued == 1
    with pytest.raises(Conflict):
        await rig.store.settings.delete_queue("mine", now=rig.now)
    await rig.store.jobs.cancel_job(job_id, "", now=rig.now)
    await rig.store.settings.delete_queue("mine", now=rig.now)
    for call in (
        rig.store.settings.get_queue("mine"),
        rig.store.settings.delete_queue("mine"),
        rig.store.settings.resume_queue("mine"),
    ):
        with pytest.raises(NotFound):
            await call
    with pytest.raises(ValidationError):
        await rig.store.jobs.revive_job(job_id, "", now=rig.now)  # its queue is gone


async def test_rules_are_kept_as_they_were_written(rig: Rig) -> None:
    before = await rig.store.settings.read_settings()
    assert before.rules == ""
    text = '[[rule]]\nname = "näh"\npattern = "\\\\d"\n'
    after = await rig.store.settings.write_rules(text, now=rig.now)
    assert after > before.revision
    found = await rig.store.settings.read_settings()
    assert (found.rules, found.revision) == (text, after)
    assert await rig.store.settings.write_rules(text, now=rig.now) == after  # nothing new
    assert (await rig.kinds()).count("settings.changed") == 1
    await rig.store.settings.write_rules("", now=rig.now)
    assert (await rig.store.settings.read_settings()).rules == ""


async def test_projects(rig: Rig) -> None:
    await rig.host(gpus=4)
    assert await rig.store.settings.list_projects() == []
    empty = await rig.store.settings.get_project("nobody")
    assert (empty.name, empty.settings, empty.unfinished, empty.created_at) == (
        "nobody",
        {},
        0,
        None,
    )
    revision = (await rig.store.settings.read_settings()).revision
    made = await rig.store.settings.put_project(
        "a", {"max_retries": 3, "retry_backoff": "exponential"}, now=rig.now
    )
    assert (made.settings, made.created_at) == (
        {"max_retries": 3, "retry_backoff": "exponential"},
        rig.now,
    )
    layers = await rig.store.settings.read_settings()
    assert layers.projects == {"a": made.settings}
    assert layers.revision > revision
    rig.tick(5)
    await rig.store.settings.put_project("a", {"max_retries": 3}, now=rig.now)  # nothing new
    assert (await rig.store.settings.read_settings()).revision == layers.revision
    changed = await rig.store.settings.put_project(
        "a", {"max_retries": "5"}, ["retry_backoff"], now=rig.now
    )
    assert (changed.settings, changed.created_at) == ({"max_retries": 5}, made.created_at)
    running = await rig.submit(project="b", gpus=2)
    assert await rig.admit() == [running]
    waiting = await rig.submit(project="b", gpus=4)
    names = {
        p.name: (p.running, p.gpus, p.unfinished, p.settings)
        for p in await rig.store.settings.list_projects()
    }
    assert names == {"a": (0, 0, 0, {"max_retries": 5}), "b": (1, 2, 2, {})}
    assert [p.name for p in await rig.store.settings.list_projects()] == ["a", "b"]
    events = [e for e in await rig.events() if e.kind == "project.changed"]
    assert [(e.project, e.data["created"]) for e in events] == [("a", True), ("a", False)]
    with pytest.raises(NotFound):
        await rig.store.settings.delete_project("b", now=rig.now)  # it has no settings of its own
    await rig.store.settings.put_project("b", {}, now=rig.now)
    with pytest.raises(Conflict) as refused:
        await rig.store.settings.delete_project("b", now=rig.now)
    assert refused.value.code == "project_in_use"
    for job_id in (running, waiting):
        await rig.store.jobs.cancel_job(job_id, "", now=rig.now)
    await rig.store.settings.delete_project("b", now=rig.now)
    assert [p.name for p in await rig.store.settings.list_projects()] == ["a"]
    assert (await rig.store.settings.read_settings()).projects == {"a": {"max_retries": 5}}
