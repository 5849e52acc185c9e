"""The environment of a rank: torchrun's words, peers, and which devices it sees (ENV-2 to ENV-4)."""

from __future__ import annotations

import json
from typing import Any

from holdfast.agent.environment import make_task_environment
from holdfast.core.ids import TaskKey
from holdfast.wire.agent import LaunchOrder, Peer


def make(inherited: dict[str, str] | None = None, host_gpus: int = 0, **fields: Any) -> dict[str, str]:
    order = LaunchOrder(
        key=TaskKey("j1", fields.pop("rank", 0), 4),
        name="n",
        queue="q",
        project="p",
        argv=["x"],
        **{"attempt": 1, **fields},
    )
    return make_task_environment(
        order, inherited or {}, host_id="h", host_mark="m", beat_socket="/b", work_folder="/w", host_gpus=host_gpus
    )


def test_ranks_are_named_as_torchrun_names_them() -> None:
    env = make(
        rank=5, attempt=3, world_size=8, local_rank=1, local_world_size=4, group_rank=1, group_world_size=2,
        master_addr="10.0.0.7", master_port=23456,
    )  # fmt: skip
    expected = {
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "5", "ROLE_WORLD_SIZE": "8", "ROLE_NAME": "default", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "23456",
        "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_RUN_ID": "j1",
    }  # fmt: skip
    assert expected.items() <= env.items()
    assert "HOLDFAST_PEERS" not in env


def test_peers_are_all_ranks_and_how_they_are_reached() -> None:
    env = make(peers=[Peer(rank=0, host="a", address="10.0.0.1"), Peer(rank=1, host="b", address="10.0.0.2")])
    assert json.loads(env["HOLDFAST_PEERS"]) == [
        {"rank": 0, "host": "a", "address": "10.0.0.1"}, {"rank": 1, "host": "b", "address": "10.0.0.2"},
    ]  # fmt: skip


def test_ranks_that_share_a_host_do_not_take_every_core_each() -> None:
    assert make(local_world_size=2)["OMP_NUM_THREADS"] == "1"
    assert make(local_world_size=2, env={"OMP_NUM_THREADS": "6"})["OMP_NUM_THREADS"] == "6"
    assert make({"OMP_NUM_THREADS": "3"}, local_world_size=2)["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in make(local_world_size=1)


def test_which_devices_a_rank_sees() -> None:
    """ENV-3, ENV-4."""
    assert "CUDA_VISIBLE_DEVICES" not in make()
    assert make(host_gpus=8)["CUDA_VISIBLE_DEVICES"] == ""
    assert make(host_gpus=8, gpus=[3, 5])["CUDA_VISIBLE_DEVICES"] == "3,5"
    ranks = [make(host_gpus=8, gpus=[own], visible_gpus=[6, 2], local_rank=n) for n, own in enumerate((6, 2))]
    assert [env["CUDA_VISIBLE_DEVICES"].split(",")[int(env["LOCAL_RANK"])] for env in ranks] == ["6", "2"]
    assert {env["HIP_VISIBLE_DEVICES"] for env in ranks} == {"6,2"}
