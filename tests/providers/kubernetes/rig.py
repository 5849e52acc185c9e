"""A real Kubernetes on loopback (tests/system/kubernetes/start.sh) as a provider under test."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.core.fleet.instances import CreateOrder, Offer
from tests.providers.rig import ROOT, StubRig, write_stub
from tests.waits import run_patiently

SCRIPTS = ROOT / "tests" / "system" / "kubernetes"
PROGRAMS = os.environ.get("HOLDFAST_KUBERNETES_BIN", "")
TOOLS = ("etcd", "dockerd", "docker", "kubectl", "openssl", "curl")


def find_missing() -> list[str]:
    """What the scripts need and this machine lacks."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    missing = [tool for tool in TOOLS if shutil.which(tool, path=path) is None]
    return missing + ([] if PROGRAMS else ["HOLDFAST_KUBERNETES_BIN"])


class Kubernetes:
    """The daemons."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kubeconfig = folder, folder / "kubeconfig"

    def start(self) -> None:
        words = [str(SCRIPTS / "start.sh"), PROGRAMS, str(self.folder), "1"]
        done = run_patiently(words, capture_output=True, text=True, seconds=280)
        assert done.returncode == 0, done.stderr[-3000:]

    def stop(self) -> None:
        run_patiently([str(SCRIPTS / "stop.sh"), str(self.folder)], seconds=120, check=True)

    def ask(self, *words: str) -> Any:
        """What kubectl prints as JSON."""
        argv = ["kubectl", "--kubeconfig", str(self.kubeconfig), *words, "-o", "json"]
        done = run_patiently(argv, capture_output=True, text=True, seconds=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@contextlib.contextmanager
def serve_kubernetes(folder: Path) -> Iterator[Kubernetes]:
    """A cluster of one node for the block."""
    made = Kubernetes(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


class KubernetesRig(StubRig):
    """Pods whose program is a stub, in an image of empty folders into which this machine's are
    mounted."""

    kind = "kubernetes"
    offer = Offer(name="pod", cpu_slots=0)

    def __init__(self, folder: Path, kubernetes: Kubernetes) -> None:
        super().__init__(folder)
        self._kubeconfig = folder / "kubeconfig"
        shutil.copy(kubernetes.kubeconfig, self._kubeconfig)
        stub = write_stub(self._stubs)
        mounted = sorted(
            {
                "/usr",
                sys.prefix,
                str(Path(sys.executable).resolve().parents[1]),
                str(ROOT),
                str(folder),
            }
        )
        mounts = [{"name": f"m{n}", "mountPath": path} for n, path in enumerate(mounted)]
        volumes = [{"name": f"m{n}", "hostPath": {"path": path}} for n, path in enumerate(mounted)]
        self.config: dict[str, Any] = {
            "kubeconfig": str(self._kubeconfig),
            "image": "base:box",
            "pull_policy": "Never",
            "entry": [str(stub)],
            "state": "/tmp/holdfast",
            "grace_seconds": 1,
            "pod": {
                "spec": {
                    "hostNetwork": True,
                    "volumes": volumes,
                    "containers": [{"name": "agent", "volumeMounts": mounts}],
                }
            },
        }
        self.bad_config: dict[str, Any] = {"pod": {"spec": {"containers": [{"name": "no name"}]}}}

    @contextlib.contextmanager
    def hang(self, order: CreateOrder) -> Iterator[None]:
        """A server that takes calls and never answers."""
        whole = self._kubeconfig.read_text()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            lines = [
                f'clusters: [{{name: box, cluster: {{server: "http://127.0.0.1:{port}"}}}}]'
                if line.startswith("clusters:")
                else line
                for line in whole.splitlines()
            ]
            self._kubeconfig.write_text("\n".join(lines))
            yield
        self._kubeconfig.write_text(whole)
