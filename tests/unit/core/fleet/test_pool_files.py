"""Pools as files and containers' environments write them."""

from __future__ import annotations

import pytest

from holdfast.core.fleet.pool_files import ALIASES, make_pool, read_pools
from holdfast.core.fleet.pools import PoolSpec
from holdfast.errors import ValidationError

FILE = """
[pool.a100]
provider = "local"
min = 1
max = 4
idle_timeout = "10m"
spawn_timeout_seconds = 120
max_usd_per_day = 40
queues = ["gpu"]

[[pool.a100.offers]]
name = "one"
gpus = 1
usd_per_hour = 1.5
"""


def read_one(text: str = FILE, **environment: str) -> PoolSpec:
    return read_pools(text, environment).pools[0]


def test_a_file_is_read_with_short_and_long_names_and_durations() -> None:
    pool = read_one()
    assert (pool.name, pool.min, pool.max) == ("a100", 1, 4)
    assert (pool.idle_timeout_seconds, pool.spawn_timeout_seconds) == (600.0, 120.0)
    assert pool.offers[0].gpus == 1
    assert pool.shutdown_grace_seconds == 600.0


def test_the_environment_overrides_the_file_and_its_own_name_the_general_one() -> None:
    assert read_one(HOLDFAST_POOL_MAX="7").max == 7
    assert read_one(HOLDFAST_POOL_MAX="7", HOLDFAST_POOL_A100_MAX="9").max == 9
    assert read_one(HOLDFAST_POOL_MAX_USD_PER_DAY="off").max_usd_per_day is None
    assert read_one(HOLDFAST_POOL_QUEUES="gpu, cpu").queues == ("gpu", "cpu")


def test_names_of_existing_deployments_are_taken_and_said() -> None:
    read = read_pools(FILE, {"GPU_IDLE_TIMEOUT_SEC": "45", "AUTO_START_WORKER_PROCESS": "1"})
    (pool,) = read.pools
    assert pool.heartbeat_timeout_seconds == 45.0
    assert pool.idle_timeout_seconds == 600.0, "there it is the age of a heartbeat"
    assert len(read.notes) == 2
    assert "heartbeat_timeout" in read.notes[0].lower()
    assert "not needed" in read.notes[1]


def test_an_empty_variable_is_none() -> None:
    """Containers are given `MAX_ACTIVE_GPUS=` for what is not set."""
    read = read_pools(FILE, {"MAX_ACTIVE_GPUS": "", "HOLDFAST_POOL_MIN": " "})
    assert (read.pools[0].min, read.pools[0].max, read.notes) == (1, 4, ())


@pytest.mark.parametrize("variable", ["MIN_ACTIVE_GPUS", "HOLDFAST_POOL_MIN"])
def test_a_variable_that_cannot_be_read_is_named(variable: str) -> None:
    with pytest.raises(ValidationError, match=f"pool a100: {variable} = 'x' cannot be read"):
        read_one(**{variable: "x"})


@pytest.mark.parametrize(("alias", "key"), ALIASES.items())
def test_each_alias_sets_its_key(alias: str, key: str) -> None:
    assert getattr(read_one(**{alias: "3"}), key) == 3


def test_bounds_are_two_and_ten_where_only_aliases_are_used() -> None:
    bare = '[pool.p]\nprovider = "local"\n[[pool.p.offers]]\nname = "o"\n'
    assert (read_one(bare).min, read_one(bare).max) == (0, 10)
    pool = read_one(bare, ORCHESTRATOR_POLL_SEC="5")
    assert (pool.poll_seconds, pool.min, pool.max) == (5.0, 2, 10)
    assert read_one(FILE, ORCHESTRATOR_POLL_SEC="5").max == 4, "the file says its own"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("mix = 3", "no 'mix'"),
        ("buffer = -1", "buffer"),
        ('poll = "soon"', "not a duration"),
        ('buffer = "some"', "buffer = 'some' cannot be read: 'some' is no number; write 4"),
        ('buffer = "1.5"', "buffer"),
        ("max = 0", "min is 1 and max 0"),
        ("max_usd_per_hour = 1.0", "over max_usd_per_hour"),
        ("idle_timeout_seconds = 5", "idle_timeout"),
    ],
)
def test_what_cannot_be_used_is_said_with_its_key(change: str, says: str) -> None:
    text = FILE.replace("max = 4", change if change.startswith("max = ") else f"max = 4\n{change}")
    with pytest.raises(ValidationError, match=says):
        read_pools(text, {})


@pytest.mark.parametrize("text", ["", "[pool]", "a = 1\n[pool.x]", "[pool.x", "[pool]\nx = 3"])
def test_a_file_without_a_pool_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        read_pools(text, {})


def test_two_offers_of_one_name_are_refused() -> None:
    with pytest.raises(ValidationError, match="two offers"):
        make_pool("p", {"provider": "local", "offers": [{"name": "o"}, {"name": "o"}]})
