"""Devices that a node's environment leaves out are another's (VISIBLE-1, VISIBLE-2)."""

from __future__ import annotations

import pytest

from holdfast.agent.probes.visible import choose_visible, declare_visible
from holdfast.core.gpus import Gpu

CARDS = [Gpu(index=n, uuid=f"GPU-{n}{n}aa") for n in range(4)]
AMD = [Gpu(index=n, uuid=f"0x{n}f", vendor="amd") for n in range(4)]
SLICE = "MIG-5a-6b"


@pytest.mark.parametrize(
    ("environ", "offers"),
    [
        ({}, ["0", "1", "2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, ["2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": " 3 , 1 "}, ["3", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-22aa,GPU-1"}, ["2", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, []),  # the beginning of several names none
        ({"CUDA_VISIBLE_DEVICES": "2,9,3"}, ["2"]),  # as CUDA reads it
        ({"CUDA_VISIBLE_DEVICES": "1,1,2"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, []),
        ({"CUDA_VISIBLE_DEVICES": f"{SLICE},MIG-GPU-11aa/3/0"}, [SLICE, "MIG-GPU-11aa/3/0"]),
        ({"CUDA_VISIBLE_DEVICES": "1", "SLURM_JOB_GPUS": "0,2"}, ["1"]),
        ({"SLURM_JOB_GPUS": "0,2"}, ["0", "2"]),
        ({"SLURM_JOB_GPUS": "0,1,2,3", "SLURM_STEP_GPUS": "3"}, ["3"]),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, ["0", "1", "2", "3"]),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-33aa"}, ["3"]),
        # A container with four of eight devices: the driver shows and counts these alone.
        ({"NVIDIA_VISIBLE_DEVICES": "4,5,6,7"}, ["0", "1", "2", "3"]),
        ({"ROCR_VISIBLE_DEVICES": "1"}, ["0", "1", "2", "3"]),
    ],
)
def test_what_the_environment_leaves_to_a_node_is_offered(
    environ: dict[str, str], offers: list[str]
) -> None:
    found = choose_visible(CARDS, environ)
    assert [gpu.word or str(gpu.index) for gpu in found.gpus] == offers
    assert bool(found.said) == (len(offers) < 4)
    assert len({gpu.index for gpu in found.gpus}) == len(found.gpus)


@pytest.mark.parametrize(
    ("environ", "offers"),
    [
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, [2, 3]),
        (
            {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"},
            [3],
        ),  # of those that ROCR leaves
        ({"HIP_VISIBLE_DEVICES": "0x1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "0"}, [0]),
        ({"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "0"}, [3]),
    ],
)
def test_amds_variables_count_one_after_the_other(
    environ: dict[str, str], offers: list[int]
) -> None:
    assert [gpu.index for gpu in choose_visible(AMD, environ).gpus] == offers


def test_what_is_left_out_is_said() -> None:
    assert choose_visible(CARDS, {"CUDA_VISIBLE_DEVICES": "2"}).said == (
        "of this machine's 4 GPUs this host offers 2, because its environment says CUDA_VISIBLE_DEVICES=2"
    )


@pytest.mark.parametrize(
    ("count", "environ", "offers"),
    [
        (2, {}, ["0", "1"]),
        (2, {"CUDA_VISIBLE_DEVICES": "2,3"}, ["2", "3"]),
        (1, {"CUDA_VISIBLE_DEVICES": "2,3"}, ["2"]),
        (4, {"CUDA_VISIBLE_DEVICES": "2,3"}, ["2", "3"]),
        (2, {"CUDA_VISIBLE_DEVICES": f"GPU-1,{SLICE}"}, ["GPU-1", SLICE]),
        (2, {"CUDA_VISIBLE_DEVICES": ""}, ["0", "1"]),
        (2, {"SLURM_JOB_GPUS": "6,7"}, ["6", "7"]),
        (2, {"NVIDIA_VISIBLE_DEVICES": "all"}, ["0", "1"]),
        (0, {"CUDA_VISIBLE_DEVICES": "2,3"}, []),
        (2, {"CUDA_VISIBLE_DEVICES": "99999"}, []),
    ],
)
def test_declared_devices_are_those_that_the_environment_names(
    count: int, environ: dict[str, str], offers: list[str]
) -> None:
    found = declare_visible(count, environ)
    assert [gpu.word or str(gpu.index) for gpu in found.gpus] == offers
    assert bool(found.said) == (offers != [str(n) for n in range(count)])
