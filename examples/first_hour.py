"""The first hour of a user from Slurm, SkyPilot, dstack, Modal and Kubernetes: five sessions, typed
by this script, each command with its time.

    python examples/first_hour.py                                   print them
    python examples/first_hour.py --write docs/reference/first-hour.md
    python examples/first_hour.py --clone --user nobody             from a clean clone, as that user

It starts a `holdfast up` in a folder of its own and ends it. Each user has a folder and a
configuration of their own, and logs in first. A step whose command this version lacks is left out,
and said. The exit code is 0 only if every command ended as its step says.
"""

from __future__ import annotations

import argparse
import os
import platform
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
READY_SECONDS, STEP_SECONDS = 180.0, 300.0
SHOWN = 8

TRAIN = """\
import pathlib, sys, time

import holdfast

out = pathlib.Path("out")
out.mkdir(exist_ok=True)
for step in range(1, 6):
    time.sleep(0.1)
    print(f"step {step} of 5", flush=True)
    holdfast.beat(step, 5)
(out / "model.txt").write_text("the model\\n")
"""
APP = """\
import holdfast


@holdfast.task(retry=2)
def square(n: int) -> int:
    return n * n


if __name__ == "__main__":
    print(list(square.map(range(8))))
"""


class Step(NamedTuple):
    """One command. there: what the user typed before. here: what is typed now. needs: the words of
    help that this version must have, as `exec` or `submit --workdir`. ends: its exit code."""

    there: str
    here: str
    needs: tuple[str, ...] = ()
    ends: int = 0


class Session(NamedTuple):
    """One user's hour. files: name → text, in the folder that the user works in."""

    origin: str
    steps: tuple[Step, ...]
    files: dict[str, str]


PYTHON = shlex.quote(sys.executable)
LOGIN = Step("", "holdfast login $SERVER --token-file $TOKEN --context first")
WORKDIR = ("submit --workdir",)
OUTPUTS = (*WORKDIR, "submit --outputs", "outputs")
LONG = "holdfast submit --name long -- sleep 300"

SESSIONS = (
    Session(
        "Slurm",
        (
            Step("ssh login-node", LOGIN.here),
            Step("sinfo", "holdfast hosts"),
            Step("sbatch train.sh", "holdfast submit --name train --workdir . -- bash train.sh", WORKDIR),
            Step("sbatch -W", "holdfast wait @last", ("wait", *WORKDIR)),
            Step("cat slurm-1.out", "holdfast logs @last", WORKDIR),
            Step("sacct -j 1", "holdfast attempts @last", WORKDIR),
            Step("sbatch --array=0-7%4 one.sh",
                 "holdfast submit --name eight --array 0-7%4 -- sh -c 'echo index $HOLDFAST_ARRAY_INDEX'"),
            Step("squeue", "holdfast jobs"),
            Step("sbatch --gres=gpu:99 big.sh", "holdfast submit --name big --gpus 99 -- true", ends=2),
            Step("sbatch long.sh", LONG),
            Step("squeue -o %r", "holdfast why long"),
            Step("srun --overlap --jobid=4 hostname", "holdfast exec long -- uname -s", ("exec",)),
            Step("scancel 4", "holdfast cancel long"),
        ),
        {"train.sh": f"{PYTHON} train.py\n", "train.py": TRAIN},
    ),
    Session(
        "SkyPilot",
        (
            Step("sky api login", LOGIN.here),
            Step("sky check", "holdfast status"),
            Step("sky launch task.yaml", f"holdfast run --workdir . -- {PYTHON} train.py",
                 ("run --workdir",)),
            Step("sky jobs launch task.yaml",
                 f"holdfast submit --name kept --workdir . --outputs out --max-retries 2 -- {PYTHON} train.py",
                 OUTPUTS),
            Step("sky jobs queue", "holdfast jobs"),
            Step("sky jobs logs", "holdfast logs -f kept", OUTPUTS),
            Step("aws s3 ls s3://bucket/out/", "holdfast wait kept --outputs && holdfast outputs kept",
                 ("wait --outputs", *OUTPUTS)),
            Step("rsync cluster:out/model.txt .", "holdfast cp kept:out/model.txt . && cat model.txt",
                 ("cp", *OUTPUTS)),
            Step("sky jobs launch (preempted)",
                 "holdfast run --max-retries 2 --retry-delay 0s --name flaky -- "
                 "sh -c 'test -e tried || { touch tried; exit 3; }; echo the second attempt'"),
            Step("sky status", "holdfast attempts flaky"),
        ),
        {"train.py": TRAIN},
    ),
    Session(
        "dstack",
        (
            Step("dstack project add", LOGIN.here),
            Step("dstack fleet", "holdfast hosts"),
            Step("dstack apply -f train.dstack.yml", f"holdfast run --workdir . -- {PYTHON} train.py",
                 ("run --workdir",)),
            Step("dstack apply -d -f serve.dstack.yml",
                 f"holdfast submit --name web -- {PYTHON} -m http.server 24987 --bind 127.0.0.1"),
            Step("dstack ps", "holdfast jobs --limit 2"),
            Step("dstack attach web",
                 "holdfast port-forward web 24987:24988 & FORWARD=$!; sleep 3; "
                 "curl -s -o /dev/null -w '%{http_code}\\n' http://127.0.0.1:24988/; kill $FORWARD",
                 ("port-forward",)),
            Step("dstack logs web", "holdfast logs web"),
            Step("dstack stop web", "holdfast cancel web"),
        ),
        {"train.py": TRAIN},
    ),
    Session(
        "Modal",
        (
            Step("modal token set", LOGIN.here),
            Step("modal run squares.py", f"{PYTHON} squares.py"),
            Step("modal app list", "holdfast calls"),
            Step("modal run squares.py::square", "holdfast calls call squares:square '{\"n\": 12}'"),
            Step("modal.Cron in the file",
                 "holdfast schedules set nightly --cron '0 2 * * *' -- echo good night"),
            Step("modal app list", "holdfast schedules next nightly 2"),
            Step("modal app stop", "holdfast schedules delete nightly"),
        ),
        {"squares.py": APP},
    ),
    Session(
        "Kubernetes",
        (
            Step("kubectl config use-context first", LOGIN.here),
            Step("kubectl config get-contexts", "holdfast contexts"),
            Step("kubectl get nodes", "holdfast hosts"),
            Step("kubectl create -f job.yaml", "holdfast submit --file job.toml"),
            Step("kubectl wait --for=condition=complete", "holdfast wait hello", ("wait",)),
            Step("kubectl logs job/hello", "holdfast logs hello"),
            Step("kubectl get events", "holdfast events --job hello"),
            Step("kubectl create -f long.yaml", LONG.replace("long", "pod")),
            Step("kubectl describe pod", "holdfast show pod"),
            Step("kubectl exec pod -- ls /", "holdfast exec pod -- pwd", ("exec",)),
            Step("kubectl cp a.txt pod:/tmp/", "holdfast cp job.toml pod:copied.toml", ("cp",)),
            Step("kubectl delete job pod", "holdfast cancel pod"),
        ),
        {"job.toml": 'name = "hello"\nargv = ["echo", "hello"]\n[retry]\nmax_retries = 3\n'},
    ),
)  # fmt: skip


class Told(NamedTuple):
    """A step that was typed: its seconds, exit code and output."""

    step: Step
    seconds: float
    code: int
    output: str


def is_there(need: str, environ: dict[str, str], known: dict[str, bool]) -> bool:
    """Return whether this version has a command, or a command's option."""
    if need not in known:
        command, _, option = need.partition(" ")
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", command, "--help"],
            env=environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
        known[need] = done.returncode == 0 and option in done.stdout
    return known[need]


def type_step(step: Step, folder: Path, environ: dict[str, str]) -> Told:
    """Type one command."""
    began = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", step.here],
        cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", timeout=STEP_SECONDS, check=False,
    )  # fmt: skip
    return Told(step, time.monotonic() - began, done.returncode, done.stdout)


def start_up(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a Holdfast of this script's own, and return it with its address."""
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "up", "--port", "0", "--gpus", "0", "--slots", "4",
             "--app", "squares", "--app-path", str(folder / "modal")],
            cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until and up.poll() is None:
        try:
            return up, (folder / "holdfast-data" / "url").read_text().strip()
        except FileNotFoundError:
            time.sleep(0.1)
    up.terminate()
    raise SystemExit(f"`holdfast up` did not start:\n{(folder / 'up.log').read_text()}")


def play(only: str | None) -> Iterator[tuple[Session, list[Told], list[Step]]]:
    """Play the sessions; yield each with what was typed and what was left out."""
    sessions = [s for s in SESSIONS if only is None or s.origin.lower() == only.lower()]
    known: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(prefix="first-hour-") as made:
        top = Path(made)
        for session in SESSIONS:
            folder = top / session.origin.lower()
            folder.mkdir()
            for name, text in session.files.items():
                (folder / name).write_text(text)
        up, url = start_up(top)
        try:
            for session in sessions:
                environ = make_environment(top, session, url)
                told, left = [], []
                for step in session.steps:
                    if all(is_there(need, environ, known) for need in step.needs):
                        told.append(type_step(step, top / session.origin.lower(), environ))
                    else:
                        left.append(step)
                yield session, told, left
        finally:
            up.terminate()
            try:
                up.wait(60)
            except subprocess.TimeoutExpired:
                up.kill()


def make_environment(top: Path, session: Session, url: str) -> dict[str, str]:
    """Return a user's variables: no other Holdfast than the one that is logged in to."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
    programs = f"{Path(sys.executable).parent}:{kept.get('PATH', '')}"
    own = top / f"home-{session.origin.lower()}"
    more = {
        "PATH": programs, "SERVER": url, "TOKEN": str(top / "holdfast-data" / "token"),
        "XDG_CONFIG_HOME": str(own / "config"), "XDG_STATE_HOME": str(own / "state"),
    }  # fmt: skip
    return kept | more


def draw(session: Session, told: list[Told], left: list[Step]) -> str:
    """Return one session as a part of the page."""
    total = sum(one.seconds for one in told)
    lines = [f"## From {session.origin}", "", f"{len(told)} commands, {total:.1f} s together.", ""]
    lines.append("```")
    for one in told:
        was = f"  # {one.step.there}" if one.step.there else ""
        shown = one.step.here.replace(PYTHON, "python")
        lines.append(f"$ {shown}{was}")
        plain = re.sub(r"/\S*?first-hour-\w+", "~", one.output.replace(sys.executable, "python"))
        output = plain.rstrip().splitlines()
        lines += [f"  {line}".rstrip()[:150] for line in output[:SHOWN]]
        if len(output) > SHOWN:
            lines.append(f"  … {len(output) - SHOWN} more lines")
        wrong = "" if one.code == one.step.ends else f", exit code {one.code}: NOT AS IT SHOULD BE"
        lines.append(f"  [{one.seconds:.2f} s{wrong}]")
    lines.append("```")
    if left:
        lines += ["", "Left out, because this version lacks what their commands need:", ""]
        lines += [f"- `{step.there}` ({', '.join(step.needs)})" for step in left]
    return "\n".join(lines) + "\n"


def run_in_clone(user: str | None, rest: list[str]) -> int:
    """Clone this repository, build its environment there, and run this script in it."""
    top = Path(tempfile.mkdtemp(prefix="first-hour-clone-"))
    try:
        words: list[str] = []
        if user is not None:
            entry = pwd.getpwnam(user)
            words = [
                "setpriv",
                f"--reuid={entry.pw_uid}",
                f"--regid={entry.pw_gid}",
                "--clear-groups",
            ]
            os.environ |= {"HOME": str(top), "USER": user, "TMPDIR": str(top)}
        clone = top / "holdfast"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        if user is not None:
            subprocess.run(["chown", "-R", f"{entry.pw_uid}:{entry.pw_gid}", str(top)], check=True)
        subprocess.run([*words, "make", "env"], cwd=clone, check=True, stdout=subprocess.DEVNULL)
        script = [str(clone / ".venv" / "bin" / "python"), "examples/first_hour.py", *rest]
        return subprocess.run([*words, *script], cwd=clone, check=False).returncode
    finally:
        shutil.rmtree(top, ignore_errors=True)


def main() -> int:
    """Play the sessions, and print or write the page."""
    parser = argparse.ArgumentParser(description="Play the first hour of five users.")
    parser.add_argument("--only", choices=[session.origin for session in SESSIONS])
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--clone", action="store_true", help="in a clean clone")
    parser.add_argument("--user", help="as this user, in a clone (needs root)")
    given = parser.parse_args()
    if given.clone or given.user:
        rest = ["--only", given.only] if given.only else []
        return run_in_clone(given.user, rest)
    load = os.getloadavg()[0]
    page = [
        "# The first hour, from five systems",
        "",
        "Typed by `python examples/first_hour.py --write docs/reference/first-hour.md`, each command",
        "with its time, and behind `#` what was typed there. `$SERVER` is the address of a `holdfast",
        "up` on the same machine, `$TOKEN` the file of its token.",
        "",
        f"The machine: {os.cpu_count()} CPUs, {platform.system()} {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, as {'root' if os.geteuid() == 0 else 'an ordinary user'}; "
        f"other work gave it a load of {load:.0f} at the start.",
        "",
    ]
    good = True
    for session, told, left in play(given.only):
        part = draw(session, told, left)
        good = good and all(one.code == one.step.ends for one in told)
        print(part, flush=True)
        page += [part]
    if given.write is not None:
        given.write.write_text("\n".join(page).rstrip() + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
