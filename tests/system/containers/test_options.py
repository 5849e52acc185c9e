"""What the runtimes are asked for, option by option, for hosts of every kind. Nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.containers.box import Box, Surroundings, is_worth_mounting, make_box
from holdfast.agent.containers.plan import name_container
from holdfast.agent.containers.runtimes import Kind, Runtime, Traits, find_runtime, is_hybrid
from holdfast.agent.containers.tasks import read_options
from holdfast.core.gpus import Gpu
from holdfast.core.ids import TaskKey
from holdfast.errors import ValidationError
from holdfast.wire.agent import CheckpointOffer, LaunchOrder

KEY = TaskKey("j1", 3, 2)
AROUND = Surroundings(
    mark="abcd",
    task_folder="/state/tasks/j1.3.2",
    work_folder="/state/work/j1",
    beat_socket="/state/beat.sock",
    gpus=[Gpu(index=index) for index in range(4)],
)
ROOT = Traits(uid=0, gid=0, init="/usr/bin/catatonit")


def make(
    kind: Kind = "podman",
    traits: Traits = ROOT,
    environment: dict[str, str] | None = None,
    *,
    around: Surroundings = AROUND,
    **fields: Any,
) -> Box:
    order = LaunchOrder(
        key=KEY,
        attempt=1,
        name="job",
        queue="q",
        project="p",
        image="some/image",
        **{"argv": ["run"], **fields},
    )
    return make_box(
        order, Runtime(kind=kind, program=f"/usr/bin/{kind}"), traits, environment or {}, around
    )


@pytest.mark.parametrize("kind", ["podman", "docker"])
def test_a_container_that_reads_an_input_is_made_and_started_for_it(kind: Kind) -> None:
    fed = make(kind, stdin="0" * 64)
    assert "--interactive" in fed.options
    assert "--interactive" not in make(kind).options
    runtime = Runtime(kind=kind, program=kind)
    assert "--interactive" in runtime.start("name", fed=True)
    assert "--interactive" not in runtime.start("name")


def test_a_container_is_found_by_its_task_and_its_host() -> None:
    """BOX-2."""
    options = make().options
    assert "holdfast.host=abcd" in options
    assert f"holdfast.task={KEY}" in options
    assert name_container("abcd", KEY) == "holdfast-abcd-j1.3.2"


def test_an_ordinary_user_s_podman_keeps_the_user() -> None:
    options = make(traits=Traits(uid=1000, gid=100)).options
    assert "--user=1000:100" in options
    assert "--userns=keep-id" in options
    assert "--init" not in options, "there is none on this host"
    root = make().options
    assert "--user=0:0" in root
    assert "--init-path=/usr/bin/catatonit" in root
    assert not [word for word in root if word.startswith("--userns")]


def test_the_host_s_shared_memory_or_as_much_of_its_own() -> None:
    """BOX-6."""
    assert "--ipc=host" in make().options
    own = make(traits=Traits(uid=7, gid=7, shm_bytes=1 << 30)).options
    assert f"--shm-size={1 << 30}" in own
    assert "--ipc=host" not in own


def test_memory_and_limits_only_where_they_can_be_set() -> None:
    assert {"--memory=64", "--memory-swap=64"} <= set(make(memory_bytes=64).options)
    assert not [
        w
        for w in make(traits=Traits(uid=5, gid=5, memory_limits=False), memory_bytes=64).options
        if "memory" in w
    ]
    limited = make(traits=Traits(uid=0, gid=0, limits={"nofile": 100, "nproc": 7})).options
    assert [word for word in limited if "ulimit" in word] == [
        "--ulimit=nofile=100:100",
        "--ulimit=nproc=7:7",
    ]


def test_nvidia_devices_by_cdi_or_by_docker_and_counted_from_0_inside() -> None:
    box = make(
        traits=Traits(uid=0, gid=0, cdi=True),
        gpus=[1, 3],
        environment={"CUDA_VISIBLE_DEVICES": "1,3"},
    )
    assert [word for word in box.options if "gpu" in word] == [
        "--device=nvidia.com/gpu=1",
        "--device=nvidia.com/gpu=3",
    ]
    assert box.variables["CUDA_VISIBLE_DEVICES"] == "0,1"
    box = make("docker", gpus=[1, 3], environment={"CUDA_VISIBLE_DEVICES": "1,3"})
    assert '--gpus="device=1,3"' in box.options
    assert box.variables["CUDA_VISIBLE_DEVICES"] == "0,1"
    with pytest.raises(ValidationError, match="nvidia-ctk cdi generate"):
        make(gpus=[1])


def test_amd_devices_keep_their_numbers_and_no_device_means_none() -> None:
    around = Surroundings(
        **{
            **{f: getattr(AROUND, f) for f in AROUND.__struct_fields__},
            "gpus": [Gpu(index=0, vendor="amd")],
        }
    )
    box = make(
        around=around,
        gpus=[0],
        environment={"HIP_VISIBLE_DEVICES": "0"},
        traits=Traits(uid=9, gid=9),
    )
    assert {"--device=/dev/kfd", "--device=/dev/dri", "--group-add=keep-groups"} <= set(box.options)
    assert box.variables["HIP_VISIBLE_DEVICES"] == "0"
    box = make("docker")
    assert not [word for word in box.options if "device" in word or "gpus" in word]
    assert box.variables["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_a_working_folder_is_mounted_where_it_hides_nothing(tmp_path: Path) -> None:
    options = make(cwd=str(tmp_path)).options
    assert f"{tmp_path}:{tmp_path}:rw" in options
    assert f"--workdir={tmp_path}" in options
    inside = make(cwd="/no/such/folder/here").options
    assert "--workdir=/no/such/folder/here" in inside, "a folder of the image"
    assert not [word for word in inside if word.startswith("/no/such")]
    for path in ("/", "/usr/lib", "/etc", "/root", "/home", "/tmp", "/var/lib", "/usr/../etc"):
        assert not is_worth_mounting(path), path
    assert is_worth_mounting("/home/me/project")
    assert is_worth_mounting("/usrlocal")


def test_a_volume_on_one_of_our_paths_replaces_ours(tmp_path: Path) -> None:
    options = make(
        cwd=str(tmp_path), volumes=[f"/data:{tmp_path}/:ro", "/fast:/state/work/j1"]
    ).options
    volumes = [options[place + 1] for place, word in enumerate(options) if word == "--volume"]
    saves = "/state/tasks/j1.3.2/checkpoint-out"
    ours = ["/state/beat.sock:/state/beat.sock:rw", f"{saves}:{saves}:rw"]
    assert volumes == [*ours, f"/data:{tmp_path}/:ro", "/fast:/state/work/j1:rw"]


def test_docker_is_given_mounts_and_not_volumes_which_it_would_make_on_the_host() -> None:
    options = make("docker", volumes=["/data:/in:ro", '/odd,"name:/out']).options
    assert "--volume" not in options
    mounts = [word for word in options if word.startswith("--mount")]
    assert mounts[0] == "--mount=type=bind,source=/state/work/j1,target=/state/work/j1"
    assert mounts[-2:] == [
        "--mount=type=bind,source=/data,target=/in,readonly",
        '--mount=type=bind,"source=/odd,""name",target=/out',
    ]


def test_a_folder_that_podman_cannot_be_told_of_is_refused(tmp_path: Path) -> None:
    odd = tmp_path / "a:b"
    odd.mkdir()
    with pytest.raises(ValidationError, match="cannot be mounted"):
        make(cwd=str(odd))
    assert f"--mount=type=bind,source={odd},target={odd}" in make("docker", cwd=str(odd)).options


def test_what_the_attempt_before_saved_is_there_to_be_read() -> None:
    offer = CheckpointOffer(number=2, size=5, sha256="0" * 64)
    folder = "/state/tasks/j1.3.2/checkpoint-in"
    assert f"{folder}:{folder}:ro" in make(checkpoint=offer).options
    assert not [word for word in make().options if "checkpoint-in" in word]


def test_the_list_of_its_peers_is_there_to_be_read() -> None:
    path = "/state/tasks/j1.3.2/peers.json"
    assert (
        f"{path}:{path}:ro" in make(environment={"HOLDFAST_PEERS_FILE": path}, world_size=2).options
    )
    alone = make(environment={"HOLDFAST_PEERS_FILE": "/etc/shadow"}).options
    assert not [word for word in alone if "shadow" in word], (
        "a variable of the user's own mounts nothing"
    )


def test_a_shell_line_replaces_the_entrypoint_and_argv_follows_it() -> None:
    box = make(shell="echo $A", argv=[])
    assert "--entrypoint=/bin/sh" in box.options
    assert box.command == ["-c", "echo $A"]
    box = make(argv=["--flag", "x"])
    assert not [word for word in box.options if "entrypoint" in word]
    assert box.command == ["--flag", "x"]


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z_][A-Z0-9_]{0,12}", fullmatch=True),
        st.text(alphabet="ab =#\"'$\\é"),
        max_size=12,
    )
)
def test_every_variable_goes_in_and_no_value_is_an_option(environment: dict[str, str]) -> None:
    """BOX-4."""
    box = make(environment=environment)
    assert {**box.variables, **box.file_variables} == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        **environment,
    }
    named = [box.options[place + 1] for place, word in enumerate(box.options) if word == "--env"]
    assert sorted(named) == sorted(box.variables)
    assert not [
        name for name in box.variables if name.startswith(("LD_", "DOCKER_", "XDG_", "CONTAINER"))
    ]


def test_what_would_change_the_client_goes_by_file_and_takes_one_line() -> None:
    box = make(environment={"PATH": "/x", "LD_PRELOAD": "y", "GOOGLE_KEY": "two\nlines"})
    assert set(box.file_variables) == {"PATH", "LD_PRELOAD"}
    assert box.variables["GOOGLE_KEY"] == "two\nlines"
    with pytest.raises(ValidationError, match="LD_PRELOAD has a line break"):
        make(environment={"LD_PRELOAD": "a\nb"})


def test_the_image_and_what_follows_are_never_options() -> None:
    argv = Runtime(kind="podman", program="podman", options=["--root", "/r"]).create(
        "n", ["--x"], "sha", ["-rm", "--y"]
    )
    assert argv == "podman --root /r create --name n --pull=never --x -- sha -rm --y".split()


def test_the_runtime_is_the_one_asked_for_else_podman_else_docker(tmp_path: Path) -> None:
    for name in ("podman", "docker"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": str(tmp_path)}
    options = {"podman": ["--runtime", "crun"], "docker": ["--host", "h"]}
    assert find_runtime(None, options, environ).options == ["--runtime", "crun"]
    assert find_runtime("docker", options, environ).call("ps") == [
        f"{tmp_path}/docker",
        "--host",
        "h",
        "ps",
    ]
    (tmp_path / "podman").unlink()
    assert find_runtime(None, options, environ).kind == "docker"
    with pytest.raises(ValidationError, match="podman is not installed on this host"):
        find_runtime("podman", options, environ)
    (tmp_path / "docker").unlink()
    with pytest.raises(ValidationError, match="neither podman nor docker is installed"):
        find_runtime(None, options, environ)


def test_a_hybrid_layout_of_control_groups_is_told_from_the_others(tmp_path: Path) -> None:
    assert not is_hybrid(str(tmp_path))
    (tmp_path / "unified").mkdir()
    assert is_hybrid(str(tmp_path))
    (tmp_path / "cgroup.controllers").touch()
    assert not is_hybrid(str(tmp_path))


def test_options_come_from_the_environment() -> None:
    environ = {
        "HOLDFAST_DOCKER_ARGS": "--host 'a b'",
        "HOLDFAST_CONTAINER_ARGS": "--cap-add=IPC_LOCK",
    }
    found = read_options(environ)
    assert found.runtimes == {"podman": [], "docker": ["--host", "a b"]}
    assert found.extra == ["--cap-add=IPC_LOCK"]
    with pytest.raises(ValidationError, match="HOLDFAST_DOCKER_ARGS cannot be split"):
        read_options({"HOLDFAST_DOCKER_ARGS": "'"})
