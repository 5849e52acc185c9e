"""The environment of a rank: torchrun's words, peers, and which devices it sees (ENV-2 to
ENV-4)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.orders.environment import (
    MAX_PEERS_BYTES,
    add_own_program,
    describe_host,
    make_task_environment,
)
from holdfast.agent.orders.peers import PEERS_FILE, GangPeers, Peers, find_peers
from holdfast.core.ids import TaskKey
from holdfast.core.settings.watch import WatchSettings
from holdfast.wire.agent import CheckpointOffer, Gang, GangHost, LaunchOrder


def make_order(rank: int = 0, epoch: int = 4, **fields: Any) -> LaunchOrder:
    return LaunchOrder(
        key=TaskKey("j1", rank, epoch),
        name="n",
        queue="q",
        project="p",
        argv=["x"],
        **{"attempt": 1, **fields},
    )


def make(
    inherited: dict[str, str] | None = None,
    host_gpus: int = 0,
    peers: Peers | None = None,
    **fields: Any,
) -> dict[str, str]:
    return make_task_environment(
        make_order(**fields),
        inherited or {},
        host_id="h",
        host_mark="m",
        beat_socket="/b",
        work_folder="/w",
        host_gpus=host_gpus,
        peers=peers,
    )


def test_ranks_are_named_as_torchrun_names_them() -> None:
    env = make(
        rank=5,
        attempt=3,
        world_size=8,
        local_rank=1,
        local_world_size=4,
        group_rank=1,
        group_world_size=2,
        master_addr="10.0.0.7",
        master_port=23456,
    )
    expected = {
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "5", "ROLE_WORLD_SIZE": "8", "ROLE_NAME": "default", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "23456",
        "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_RUN_ID": "j1",
    }  # fmt: skip
    assert expected.items() <= env.items()
    assert "HOLDFAST_PEERS" not in env


def test_a_task_is_told_where_it_is_and_how_long_its_end_may_take() -> None:
    words = describe_host("box-1", {"zone": "a"})
    order = make_order(watch=WatchSettings(grace_seconds=90.0))
    env = make_task_environment(
        order,
        {},
        host_id="h",
        host_mark="m",
        beat_socket="/b",
        work_folder="/w",
        host_gpus=0,
        host_words=words,
    )
    assert (env["HOLDFAST_GRACE"], env["HOLDFAST_HOST_NAME"]) == ("90", "box-1")
    assert json.loads(env["HOLDFAST_HOST_LABELS"]) == {"zone": "a"}
    user = make_task_environment(
        make_order(env={"HOLDFAST_HOST_NAME": "mine"}),
        {},
        host_id="h",
        host_mark="m",
        beat_socket="/b",
        work_folder="/w",
        host_gpus=0,
        host_words=words,
    )
    assert user["HOLDFAST_HOST_NAME"] == "box-1"  # ENV-2


TWO = [
    {"rank": 0, "host": "a", "address": "10.0.0.1"},
    {"rank": 1, "host": "b", "address": "10.0.0.2"},
]


def test_peers_are_all_ranks_and_how_they_are_reached(tmp_path: Path) -> None:
    order, peers = make_order(epoch=4), GangPeers()
    hosts = [GangHost("a", "10.0.0.1"), GangHost("b", "10.0.0.2")]
    older = Gang(job_id="j1", epoch=3, hosts=hosts, places=[1, 1])
    other = Gang(job_id="j2", epoch=4, hosts=hosts, places=[1])
    peers.learn([older, Gang(job_id="j1", epoch=4, hosts=hosts, places=[0, 1]), other])
    told = peers.leave(order, tmp_path)
    assert told == find_peers(tmp_path)
    env = make(peers=told)
    assert json.loads(env["HOLDFAST_PEERS"]) == TWO
    assert json.loads(Path(env["HOLDFAST_PEERS_FILE"]).read_text()) == TWO


def test_a_job_of_one_task_has_no_peers(tmp_path: Path) -> None:
    assert GangPeers().leave(make_order(), tmp_path) is None
    assert find_peers(tmp_path) is None
    assert "HOLDFAST_PEERS_FILE" not in make()


def test_a_rank_without_a_host_is_no_peer() -> None:
    gang = Gang(job_id="j1", epoch=4, hosts=[GangHost("a", "10.0.0.1")], places=[0, -1, 0, 7])
    assert [peer.rank for peer in gang.list_peers()] == [0, 2]


@pytest.mark.parametrize("over", [0, 1])
def test_a_variable_that_no_process_can_be_started_with_is_left_out(
    tmp_path: Path, over: int
) -> None:
    path = tmp_path / PEERS_FILE
    path.write_text("x" * (MAX_PEERS_BYTES + over))
    env = make(peers=find_peers(tmp_path))
    assert ("HOLDFAST_PEERS" in env) is not bool(over)
    assert env["HOLDFAST_PEERS_FILE"] == str(path)
    done = subprocess.run(
        ["/bin/true"], env=env, check=False
    )  # the longest that is given can be given
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("size", "limit", "inline"),
    [(8, 8, True), (9, 8, False), (98_000, 98_304, True), (98_001, 98_304, False)],
)
def test_only_a_small_checkpoint_is_handed_over_as_text_too(
    tmp_path: Path, size: int, limit: int, inline: bool
) -> None:
    """The largest is one that Linux takes in a variable."""
    path, data = tmp_path / "checkpoint", bytes(range(256)) * 400
    path.write_bytes(data[:size])
    offer = CheckpointOffer(number=3, size=size, sha256="", step=7)
    env = make_task_environment(
        make_order(checkpoint=offer, inline_bytes=limit),
        {},
        host_id="h",
        host_mark="m",
        beat_socket="/b",
        work_folder="/w",
        host_gpus=0,
        checkpoint_out="/out",
        checkpoint_in=path,
    )
    named = [env[f"HOLDFAST_CHECKPOINT{more}"] for more in ("", "_STEP", "_OUT")]
    assert named == [str(path), "7", "/out"]
    assert ("CHECKPOINT_DATA" in env) is inline
    if inline:
        assert base64.b64decode(env["CHECKPOINT_DATA"]) == data[:size]
        assert subprocess.run(["/bin/true"], env=env, check=False).returncode == 0


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
    ranks = [
        make(host_gpus=8, gpus=[own], visible_gpus=[6, 2], local_rank=n)
        for n, own in enumerate((6, 2))
    ]
    assert [env["CUDA_VISIBLE_DEVICES"].split(",")[int(env["LOCAL_RANK"])] for env in ranks] == [
        "6",
        "2",
    ]
    assert {env["HIP_VISIBLE_DEVICES"] for env in ranks} == {"6,2"}


def test_a_job_with_a_token_of_its_users_has_none_of_its_own() -> None:
    """ENV-5: the controller of one with the token of another would be neither."""
    places: dict[str, Any] = {
        "host_id": "h", "host_mark": "m", "beat_socket": "/b", "work_folder": "/w", "host_gpus": 0,
        "controller": {"HOLDFAST_URL": "http://here", "HOLDFAST_TOKEN_FILE": "/w/token"},
    }  # fmt: skip
    own = make_task_environment(make_order(), {}, **places)
    assert (own["HOLDFAST_URL"], own["HOLDFAST_TOKEN_FILE"]) == ("http://here", "/w/token")
    given = {"HOLDFAST_URL": "https://there", "HOLDFAST_TOKEN": "hft_x"}
    users = make_task_environment(make_order(secrets=given), {}, **places)
    assert {k: v for k, v in users.items() if "TOKEN" in k or "URL" in k} == given


def test_holdfast_is_found_by_jobs_of_an_agent_that_was_started_by_its_path(tmp_path: Path) -> None:
    found = add_own_program({"PATH": "/nowhere"}, tmp_path)
    program = shutil.which("holdfast", path=found["PATH"])
    assert program is not None
    assert os.path.samefile(program, Path(sys.executable).with_name("holdfast"))
    assert shutil.which("python", path=found["PATH"]) is None, "no other Python comes with it"
    own = {"PATH": str(Path(sys.executable).parent)}
    assert add_own_program(own, tmp_path) == own
