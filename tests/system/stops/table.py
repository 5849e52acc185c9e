"""Makes the table of what each launcher's program saves at each kind of stop.

    python -m tests.system.stops.table --torch PYTHON [--launcher NAME] [--stop KIND] [--grace 15]

Each cell is one job of a real controller, with DataLoader workers of real torch; it is "kept" where
the save of the stop is a checkpoint afterwards. A launcher that is not installed is left out and
named. With --source FOLDER another checkout's Holdfast is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.system.containers.engines import Podman
from tests.system.slurm.cluster import Cluster as Slurm
from tests.system.slurm.cluster import find_missing
from tests.waits import run_patiently

ROOT = Path(__file__).resolve().parents[3]
TRAINER = Path(__file__).with_name("trainer.py")
GUIDE = "tar cf state.tar state && holdfast checkpoint save state.tar; exit 143"
STOPS = ("cancel", "drain", "preemption", "time limit", "ctrl-c")
IMAGE = "localhost/host:latest"
_PATIENCE_SECONDS = 150.0
_LIMIT_SECONDS = 40
_AT_ONCE = 4


def list_launchers(python: str) -> dict[str, tuple[str, list[str]]]:
    """Return each launcher's program that must be there, and the job's command."""
    train = f"{python} {TRAINER}"
    beside = str(Path(python).parent)
    uv = str(ROOT / ".uv/bin/uv")
    return {
        "plain": (python, [python, str(TRAINER)]),
        "sh -c": ("sh", ["sh", "-c", f"{train}; echo over"]),
        "bash, trap and foreground child": ("bash", ["bash", "-c", f"trap 'exit 143' TERM; {train}"]),
        "bash, trap and `wait`": ("bash", ["bash", "-c", f"trap '{GUIDE}' TERM; {train} & wait $!"]),
        "`| tee`": ("bash", ["bash", "-c", f"{train} | tee log"]),
        "torchrun": (f"{beside}/torchrun", [f"{beside}/torchrun", "--nproc-per-node", "2", str(TRAINER)]),
        "accelerate": (python, [python, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", str(TRAINER)]),
        "mp.spawn": (python, [python, str(TRAINER), "spawn"]),
        "mpirun": ("mpirun", ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", python, str(TRAINER)]),
        "GNU parallel": ("parallel", ["parallel", "-j2", train, ":::", "0", "1"]),
        "tini": ("tini", ["tini", "--", python, str(TRAINER)]),
        "timeout": ("timeout", ["timeout", "600", python, str(TRAINER)]),
        "uv run": (uv, [uv, "run", "--no-project", "--python", python, str(TRAINER)]),
        "srun": ("srun", ["srun", "-n", "1", python, str(TRAINER)]),
        "a container": ("podman", [python, str(TRAINER)]),
        "a container, `sh -c`": ("podman", ["sh", "-c", f"{train}; echo over"]),
    }  # fmt: skip


class Bench:
    """A controller and a host in a scratch folder."""

    def __init__(self, folder: Path, source: Path, python: str) -> None:
        self.folder = folder
        self.python = python
        self._source = source / "src"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
        self.env |= {
            "PYTHONPATH": str(self._source),
            "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}",
        }
        self.env |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.containers = False

    def ask(self, *words: str, check: bool = True, seconds: float = 120) -> str:
        """Return what a command of Holdfast's printed."""
        command = [sys.executable, "-m", "holdfast.cli", *words]
        done = run_patiently(
            command, seconds=seconds, capture_output=True, text=True, env=self.env, cwd=self.folder
        )
        if check and done.returncode:
            raise RuntimeError(f"{words}: {done.stderr}")
        return done.stdout

    @contextlib.contextmanager
    def up(self, more: dict[str, str]) -> Iterator[None]:
        """Keep controller and host up within the block."""
        command = [sys.executable, "-m", "holdfast.cli", "up", "--slots", "8", "--gpus", "0"]
        with (self.folder / "up.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--port", "0", "--name", "box", "--pass-env", "PYTHONPATH"],
                env={**self.env, **more}, cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            wait_for((self.folder / "holdfast-data/url").exists, 60)
            wait_for(lambda: "active" in self.ask("hosts", check=False), 60)
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def make_words(self, name: str, command: list[str], stop: str, grace: float) -> list[str]:
        """Return the words of `submit` for one cell, without the command `submit` itself."""
        cwd = self.folder / f"job-{abs(hash((name, stop, grace)))}"
        shutil.rmtree(cwd, ignore_errors=True)
        cwd.mkdir()
        saver = "no" if "wait" in name else f"{0.25 * grace:g}"
        words = ["--cwd", str(cwd), "--grace", f"{grace:g}s", "--notice", f"{grace:g}s", "--once"]
        words += ["--preemptible", "--min-runtime", "0s", "--max-retries", "0"]
        words += ["--env", f"STOP_SAVE={saver}", "--env", f"PYTHONPATH={self._source}"]
        words += ["--env", f"PATH={self.env['PATH']}", "--env", "OMP_NUM_THREADS=1"]
        words += ["--env", "PYTHONUNBUFFERED=1"]
        words += ["--env", f"SLURM_CONF={self.env['SLURM_CONF']}"] if name == "srun" else []
        words += ["--time-limit", f"{_LIMIT_SECONDS}s"] if stop == "time limit" else []
        if name.startswith("a container"):
            base = os.path.realpath(self.python)  # below the virtual environment
            prefixes = [str(Path(path).parents[1]) for path in (self.python, base)]
            mounted = dict.fromkeys(("/usr", *prefixes, str(ROOT.parent), str(cwd)))
            words += ["--image", IMAGE, "--pull", "never"]
            words += [word for path in mounted for word in ("--volume", f"{path}:{path}")]
        return [*words, "--", *command]

    def measure(self, names: list[str], stop: str, grace: float) -> dict[str, str]:
        """Return the result of each launcher, one batch of jobs."""
        launchers = list_launchers(self.python)
        ids: dict[str, str] = {}
        runs: list[subprocess.Popen[bytes]] = []
        folders = {}
        for name in names:
            words = self.make_words(name, launchers[name][1], stop, grace)
            folders[name] = Path(words[1])
            if stop == "ctrl-c":
                runs.append(self._start_run(words, folders[name]))
            else:
                ids[name] = self.ask("submit", *words).split()[0]
        ready = [folders[name] / "ready0" for name in names]
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: all(path.exists() for path in ready), _PATIENCE_SECONDS)
        was_ready = {name: (folders[name] / "ready0").exists() for name in names}
        time.sleep(1.0)
        if stop == "ctrl-c":
            listed = {
                job["spec"]["cwd"]: job["id"]
                for job in json.loads(self.ask("jobs", "--json", "--all"))
            }
            ids = {name: listed[str(folders[name])] for name in names}
        self._stop(stop, list(ids.values()), runs)
        for run in runs:
            run.wait(90)
        found = {}
        for name, job in ids.items():
            with contextlib.suppress(TimeoutError):
                wait_for(lambda job=job: self._is_over(job), 90 + grace)  # type: ignore[misc]
            kept = "SHA256" in self.ask("checkpoints", job, check=False)
            found[name] = "kept" if kept else "lost" if was_ready[name] else "not ready"
        say(f"{stop}, {grace:g} s ({time.monotonic() - began:.0f} s): {found}")
        if stop in ("drain", "preemption"):
            with contextlib.suppress(RuntimeError):
                self.ask("cancel", *ids.values(), check=False)
            self.ask("hosts", "undrain", "box", check=False)
        return found

    def _start_run(self, words: list[str], cwd: Path) -> subprocess.Popen[bytes]:
        with (cwd / "run.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli", "run", *words], env=self.env,
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0,
            )  # fmt: skip

    def _stop(self, stop: str, ids: list[str], runs: list[subprocess.Popen[bytes]]) -> None:
        if stop == "cancel":
            self.ask("cancel", *ids)
        elif stop == "drain":
            self.ask("hosts", "drain", "box", "--scale-down")
        elif stop == "preemption":
            self.ask("run", "--cpus", "8", "--priority", "90", "--", "true", seconds=240)
        for run in runs:
            os.killpg(run.pid, signal.SIGINT)

    def _is_over(self, job: str) -> bool:
        attempts: list[dict[str, Any]] = json.loads(self.ask("attempts", job, "--json"))
        return bool(attempts) and attempts[0].get("ended_at") is not None


def say(line: str) -> None:
    """Print a line at once."""
    print(line, file=sys.stderr, flush=True)


def wait_for(look: Callable[[], object], seconds: float) -> None:
    """Wait until `look` is true; raise TimeoutError after `seconds`."""
    give_up_at = time.monotonic() + seconds
    while not look():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"waited {seconds:g} s")
        time.sleep(0.2)


def make_layer() -> bytes:
    """Return an image that has nothing but the links into /usr, which the job mounts."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("bin", "lib", "lib64", "sbin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(link)
    return out.getvalue()


def main() -> None:
    """Measure, and print the table in Markdown and the results as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", required=True, help="A Python with torch and msgspec.")
    parser.add_argument("--source", type=Path, default=ROOT)
    parser.add_argument("--launcher", action="append")
    parser.add_argument("--stop", action="append", choices=STOPS)
    parser.add_argument("--grace", action="append", type=float)
    parser.add_argument("--at-once", type=int, default=_AT_ONCE)
    given = parser.parse_args()
    launchers = list_launchers(given.torch)
    wanted = given.launcher or list(launchers)
    there = [name for name in wanted if shutil.which(launchers[name][0])]
    say(f"not installed: {[name for name in wanted if name not in there] or 'none'}")
    results: dict[str, dict[str, str]] = {name: {} for name in there}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-stops-")))
        bench, more = Bench(folder, given.source, given.torch), {}
        if any(name.startswith("a container") for name in there):
            podman = Podman(folder / "podman")
            stack.callback(podman.close)
            podman.import_image(IMAGE, make_layer())
            more = podman.environment
        if "srun" in there and not find_missing():
            (folder / "slurm").mkdir()
            slurm = Slurm(folder / "slurm")
            stack.callback(slurm.end)
            slurm.start()
            bench.env |= {"SLURM_CONF": str(slurm.configuration)}
        stack.enter_context(bench.up(more))
        for grace in given.grace or (15.0, 2.0):
            for stop in given.stop or STOPS:
                for at in range(0, len(there), given.at_once):
                    found = bench.measure(there[at : at + given.at_once], stop, grace)
                    for name, result in found.items():
                        results[name][f"{stop} {grace:g} s"] = result
    heads = list(next(iter(results.values())))
    print("| launcher | " + " | ".join(heads) + " |\n|---|" + "---|" * len(heads))
    for name, row in results.items():
        print(f"| {name} | " + " | ".join(row.get(head, "") for head in heads) + " |")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
