"""A real Slurm as a provider under test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.core.fleet.instances import Offer
from tests.providers.rig import StubRig, write_stub
from tests.system.slurm.cluster import Cluster

# Cards that are files, and a partition whose jobs push others out.
_SETTINGS = """GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
KillWait=5
NodeName=DEFAULT Gres=gpu:2
PartitionName=urgent Nodes=n[1-4] PriorityTier=9 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def serve_slurm(folder: Path) -> Iterator[Cluster]:
    """A Slurm with GPUs and preemption, for the block."""
    for name in ("gpu0", "gpu1"):
        (folder / name).touch()
    (folder / "gres.conf").write_text(f"NodeName=n[1-4] Name=gpu File={folder}/gpu[0-1]\n")
    made = Cluster(folder, settings=_SETTINGS)
    try:
        made.start()
        yield made
    finally:
        made.end()


class SlurmRig(StubRig):
    """Stubs as agents in batch jobs."""

    kind = "slurm"
    offer = Offer(name="node", cpu_slots=1)

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        super().__init__(folder)
        tools = folder / "tools"
        tools.mkdir()
        path = cluster.env["PATH"]
        wrapper = tools / "sbatch"
        wrapper.write_text(
            f'#!/bin/sh\ntest -e {self._hanging} && sleep 600\nPATH="{path}" exec sbatch "$@"\n'
        )
        wrapper.chmod(0o700)
        self.config: dict[str, Any] = {
            "env": {"SLURM_CONF": str(cluster.configuration), "PATH": f"{tools}:{path}"},
            "python": str(write_stub(self._stubs)),
            "workdir": str(folder),
        }
        self.bad_config: dict[str, Any] = {"partition": "nowhere"}
