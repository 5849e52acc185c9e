"""Which pool `up --pool` makes of its flags and of the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.agent.probes.worker_client import ProbeWorker
from holdfast.cli.up.up import agent_options, count_gpus, pool_options
from holdfast.core.fleet.pool_files import make_pool
from holdfast.core.fleet.pools import PoolSpec
from holdfast.providers.config import read_config
from holdfast.providers.local import LocalConfig


def make(gpus: str, there: int) -> PoolSpec:
    """The pool on a machine of four slots where so many GPUs are there."""
    agent = agent_options(slots=4, gpus=gpus, queues=None, name=None)
    options = pool_options("local", agent, lambda: there)
    return make_pool(options.pop("name"), options)


@pytest.mark.parametrize(
    ("gpus", "there", "hosts", "offered", "declared"),
    [
        ("auto", 0, 4, (0, 1), ""),  # no driver: hosts of one slot
        ("auto", 2, 1, (2, 4), "auto"),  # one host, which asks the drivers itself
        ("8", 2, 1, (8, 4), ""),  # a number is taken as it is said
        ("0", 2, 4, (0, 1), ""),
    ],
)
def test_the_pool_has_what_is_there(
    gpus: str, there: int, hosts: int, offered: tuple[int, int], declared: str
) -> None:
    spec = make(gpus, there)
    (offer,) = spec.offers
    assert (spec.max, (offer.gpus, offer.cpu_slots)) == (hosts, offered)
    assert read_config("local", spec.config, LocalConfig).gpus == declared


def test_the_drivers_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "nvml.json"
    said.write_text(json.dumps([{"memory": {"total": 1, "used": 0}}] * 3))
    monkeypatch.setenv("FAKE_NVML", str(said))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    words = ["--nvml", "tests.system.agent.fake_nvml", "--amd-root", "/nonexistent"]
    assert count_gpus(ProbeWorker(words)) == 3
