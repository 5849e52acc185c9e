"""Prices of hosts, spends of projects and idle GPUs on PostgreSQL."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from holdfast.core.report.budgets import Spend
from holdfast.core.report.idle import IdleGpus
from holdfast.core.report.money import HostPrice
from holdfast.core.states import HostEvent
from holdfast.moves.rows import NewEvent
from tests.store.rig import Rig


async def test_a_hosts_price_is_kept_when_the_host_is_gone(rig: Rig) -> None:
    money = rig.store.money
    await rig.host("h1", gpus=2, labels={"gpu_hour_usd": "2.5"})
    await rig.host("h2", gpus=2)
    prices = [HostPrice(host="name-h1", gpu_hour_usd=2.5), HostPrice(host="name-h2")]
    assert await money.note_prices(now=rig.now) == prices
    await rig.store.hosts.move_host("h1", HostEvent.TERMINATE, "gone", now=rig.now)
    assert await money.note_prices(now=rig.now) == prices
    assert await money.read_prices() == prices


async def test_a_spend_and_what_tells_of_it_are_one_write(rig: Rig) -> None:
    """SPEND-1"""
    await rig.store.settings.put_project("p", {"max_retries": 2}, now=rig.now)
    spent = Spend(month="2026-03", usd=80.25, told=80)
    event = NewEvent(kind="project.budget", project="p", message="much is spent")
    await rig.store.money.write_spends({"p": spent, "default": spent}, [event], now=rig.now)
    assert await rig.store.money.read_spends() == {"p": spent, "default": spent}
    assert "project.budget" in await rig.kinds()
    project = await rig.store.settings.get_project("p")
    assert (project.settings, project.spent_usd) == ({"max_retries": 2}, 80.25)
    changed = await rig.store.settings.put_project("p", {"max_retries": 3}, now=rig.now)
    assert (changed.spent_month, changed.spent_usd) == ("2026-03", 80.25)


async def test_jobs_that_are_not_idle_any_more_are_forgotten(rig: Rig) -> None:
    one = IdleGpus(job_id="a", epoch=1, gpus=2, since=rig.now, seen_at=rig.now)
    two = msgspec.structs.replace(one, job_id="b", told_at=rig.now, usd_per_hour=5.0)
    await rig.store.money.write_idle_gpus([one, two], now=rig.now)
    later = msgspec.structs.replace(two, seen_at=rig.now + timedelta(minutes=1))
    await rig.store.money.write_idle_gpus([later], now=rig.now)
    assert await rig.store.money.read_idle_gpus() == [later]
    await rig.store.money.write_idle_gpus([], now=rig.now)
    assert await rig.store.money.read_idle_gpus() == []
