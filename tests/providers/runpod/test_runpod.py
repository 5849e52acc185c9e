"""Runpod's failures: lost answers, limits of rate, no capacity, pods that never start, keys that must
not be shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.core.fleet.instances import MachineState, Offer
from holdfast.errors import ValidationError
from holdfast.http.asynchronous import AsyncHttp
from holdfast.http.courier import HttpAnswer
from holdfast.providers.interface import NoCapacity, ProviderDown, Refused, Throttled
from holdfast.providers.locate import check_config
from tests.providers.rig import SECRET, make_order, open_rig
from tests.providers.runpod.fake import KEY, Answer, FakeRunpod, RunpodRig, serve


@pytest.fixture
def fake() -> FakeRunpod:
    return FakeRunpod()


@pytest.fixture
def rig(tmp_path: Path, fake: FakeRunpod) -> Iterator[RunpodRig]:
    with serve(fake) as url:
        yield RunpodRig(tmp_path, fake, url)
    assert fake.refused == []


async def test_a_lost_answer_leaves_a_machine_that_is_found(rig: RunpodRig) -> None:
    """RENT-1 and RENT-2: the pod was made though no answer came, and is not made twice."""
    provider, order = open_rig(rig), make_order(offer=rig.offer)
    rig.fake.lose_answers = True
    with pytest.raises(ProviderDown, match="had no answer"):
        await provider.create(order)
    rig.fake.lose_answers = False
    (found,) = await provider.list_machines()
    assert found.intent == order.intent
    assert (await provider.create(order)).ref == found.ref
    assert len(rig.fake.pods) == 1
    rig.fake.lose_answers = True
    with pytest.raises(ProviderDown):
        await provider.terminate(found.ref)
    rig.fake.lose_answers = False
    await provider.terminate(found.ref)
    assert rig.fake.pods == {}
    await provider.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(400, "no instances available"), NoCapacity),
        (Answer(409, "conflict"), NoCapacity),
        (Answer(401, f"invalid key {KEY}"), Refused),
        (Answer(402, "insufficient balance"), Refused),
        (Answer(403, "no access to this pool"), Refused),
        (Answer(404, "template not found"), Refused),
        (Answer(422, f"$.env.HOLDFAST_JOIN_TOKEN: {SECRET} is no good"), Refused),
        (Answer(500, "oops"), ProviderDown),
        (Answer(503, "maintenance"), ProviderDown),
    ],
)
async def test_what_a_failed_creation_means(
    rig: RunpodRig, answer: Answer, error: type[Exception]
) -> None:
    """By the table in Runpod's description; and no secret is in a message."""
    provider = open_rig(rig)
    rig.fake.failures = [answer]
    with pytest.raises(error, match=str(answer.status)) as caught:
        await provider.create(make_order(offer=rig.offer))
    assert KEY not in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    await provider.close()


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry_After": "12"}, 12),
        ({"RateLimit": '"minute";r=0;t=9, "hour";r=0;t=1812, "day";r=5;t=45012'}, 1812),
        ({"RateLimit": "nonsense"}, 30),
    ],
)
async def test_a_limit_of_rate_says_how_long(
    rig: RunpodRig, headers: dict[str, str], seconds: float
) -> None:
    provider = open_rig(rig)
    rig.fake.failures = [Answer(429, "rate limit exceeded", **headers)]
    with pytest.raises(Throttled) as caught:
        await provider.create(make_order(offer=rig.offer))
    assert caught.value.retry_seconds == seconds
    await provider.close()


async def test_a_pod_that_never_starts_stays_starting(rig: RunpodRig) -> None:
    """It costs money all the while; the controller's own deadline ends it."""
    provider = open_rig(rig)
    rig.fake.stuck = True
    made = await provider.create(make_order(offer=rig.offer))
    for _ in range(3):
        shown = await provider.get_machine(made.ref)
        assert shown is not None
        assert (shown.state, shown.reason, shown.usd_per_hour) == (MachineState.STARTING, "PROVISIONING", 0.44)  # fmt: skip
    await provider.terminate(made.ref)
    assert rig.fake.pods == {}
    await provider.close()


@pytest.mark.parametrize("status", ["EXITED", "ERROR"])
async def test_a_pod_whose_container_ended_is_still_paid_for(rig: RunpodRig, status: str) -> None:
    """So it is lost, but not gone."""
    provider = open_rig(rig)
    made = await provider.create(make_order(offer=rig.offer))
    rig.fake.pods[made.ref]["status"] = status
    (shown,) = await provider.list_machines()
    assert (shown.state, shown.lost) == (MachineState.RUNNING, "node_failure")
    assert shown.reason.startswith(status)
    await provider.terminate(made.ref)
    await provider.close()


async def test_quotes_come_from_the_catalogue(rig: RunpodRig) -> None:
    provider = open_rig(rig)
    plenty, none, unknown, elsewhere = await provider.quote(
        (
            rig.offer,
            Offer(name="h200", gpu_type="NVIDIA H200", gpus=8),
            Offer(name="odd", gpu_type="NVIDIA ODD", gpus=1),
            Offer(name="far", gpu_type="NVIDIA GeForce RTX 4090", gpus=1, region="EU-RO-1"),
        )
    )
    assert (plenty.available, plenty.usd_per_hour) == (True, 0.88)
    assert (none.available, none.usd_per_hour) == (False, pytest.approx(31.92))
    assert unknown.available is False
    assert elsewhere.available is False
    await provider.close()


async def test_every_part_of_a_pod(rig: RunpodRig) -> None:
    """GPU, CPU, volume, place, template and words; the description refuses what it does not know."""
    provider = open_rig(
        rig, volume="vol1", data_centers=["US-KS-2"], min_cuda="12.4", registry="reg1", setup="pip install holdfast",
        env={"A": "b"}, cloud="COMMUNITY",
    )  # fmt: skip
    made = await provider.create(make_order(offer=rig.offer))
    pod = rig.fake.pods[made.ref]
    assert pod["args"].startswith("sh -c 'pip install holdfast\nexec holdfast agent --join ")
    assert SECRET not in pod["args"]
    assert pod["env"]["A"] == "b"
    assert pod["mounts"] == {"network": [{"volumeId": "vol1", "path": "/workspace"}]}
    cpu = Offer(name="cpu", cpu_slots=4, config={"cpu": "cpu5c", "min_cuda": None})
    assert (await provider.create(make_order(offer=cpu))).state is MachineState.STARTING
    await provider.close()


@pytest.mark.parametrize(
    "offer",
    [
        Offer(name="bare"),
        Offer(name="gpu", gpus=1),
        Offer(name="i", gpus=1, config={"image": None}),
    ],
)
async def test_an_offer_that_names_no_pod_is_refused(rig: RunpodRig, offer: Offer) -> None:
    provider = open_rig(rig)
    with pytest.raises(Refused, match="offer"):
        await provider.create(make_order(offer=offer))
    assert rig.fake.requests == []
    await provider.close()


async def test_an_answer_that_cannot_be_read_is_no_empty_list(
    rig: RunpodRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RENT-3."""
    provider = open_rig(rig)

    async def answer(*words: Any, **more: Any) -> HttpAnswer:
        return HttpAnswer(200, b'{"items": []}')

    monkeypatch.setattr(AsyncHttp, "call", answer)
    with pytest.raises(ProviderDown, match="cannot be read"):
        await provider.list_machines()
    await provider.close()


def test_the_key_is_sent_to_nobody_in_the_clear() -> None:
    with pytest.raises(ValidationError, match="url"):
        check_config("runpod", {"url": "http://api.runpod.io"})


def test_an_offers_own_config_is_checked() -> None:
    offer = Offer(name="x", config={"cloud": "PRIVATE"})
    with pytest.raises(ValidationError, match="cloud"):
        check_config("runpod", {}, [offer])
    assert msgspec.to_builtins(offer)["config"] == {"cloud": "PRIVATE"}
