from datetime import UTC, datetime

import msgspec
import pytest

from holdfast.core.fleet.grow import find_bound
from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.snapshot import FleetHost, PoolView
from holdfast.core.forecast.raises import find_raises
from holdfast.core.states import HostState, InstanceState

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
OFFER = Offer(name="one", gpus=1, usd_per_hour=2.0)
HOST = FleetHost(
    host_id="h",
    name="h",
    state=HostState.ACTIVE,
    instance=InstanceState.MADE,
    offer="one",
    usd_per_hour=2.0,
)


def view(**bounds: float) -> PoolView:
    spec = PoolSpec(name="p", provider="local", offers=(OFFER,), **{"max": 4, **bounds})  # type: ignore[arg-type]
    return PoolView(spec=spec, hosts=(HOST,), spent_today_usd=10.0)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"max_usd_per_hour": 3.0}, "if pool p might cost $4.00 an hour (max_usd_per_hour is 3)"),
        ({"max_usd_per_day": 11.0}, "if pool p might cost $14.00 today (max_usd_per_day is 11)"),
        ({"max": 1}, "if pool p might have 2 hosts (max is 1)"),
    ],
)
def test_a_bound_that_holds_a_pool_back_is_named_with_what_is_needed(
    bounds: dict[str, float], message: str
) -> None:
    (found,) = find_raises(view(**bounds), OFFER, AT)
    assert found.message == message
    raised = {
        name: {"max": 2, "max_usd_per_hour": 4.0, "max_usd_per_day": 14.0}[name] for name in bounds
    }
    spec = msgspec.structs.replace(view(**bounds).spec, **raised)
    assert find_bound(msgspec.structs.replace(view(**bounds), spec=spec), AT, {})[0] == 2


def test_a_pool_that_two_bounds_hold_back_names_none() -> None:
    assert find_raises(view(max=1, max_usd_per_hour=2.0), OFFER, AT) == ()


def test_a_pool_that_may_rent_names_nothing() -> None:
    assert find_raises(view(), OFFER, AT) == ()
