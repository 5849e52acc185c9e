"""Take the pictures of the dashboard that stand in the docs: a real `holdfast up` with four hosts and
work on them, some of it in trouble, in a real Chromium (`make pictures`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
HOLDFAST = [sys.executable, "-m", "holdfast"]
RANKS = 64
TRAIN = """
import os, sys, time, holdfast
pace, mode = float(sys.argv[1]), sys.argv[2]
rank, attempt = int(os.environ["HOLDFAST_RANK"]), int(os.environ["HOLDFAST_ATTEMPT"])
if mode == "gang" and rank in (29, 61):
    pace *= 1.5
begin = int((holdfast.checkpoint.load() or b"0").decode()) if mode == "falls" else 0
if begin:
    print(f"\\x1b[36mresumed\\x1b[0m from the checkpoint of step {begin}", flush=True)
for step in range(begin, 600):
    holdfast.beat(step, total=600)
    if mode == "falls" and step % 20 == 0:
        holdfast.checkpoint.save(str(step).encode(), step=step)
        print(f"\\x1b[36msaved\\x1b[0m step {step}", flush=True)
    if mode != "gang":
        print(f"step {step}  \\x1b[32mloss\\x1b[0m {2.4 / (1 + step / 60):.4f}  {4096 / pace:,.0f} tokens/s",
            flush=True)
    if mode == "falls" and attempt == 1 and step == 50 and rank == 2:
        print("\\x1b[31mRuntimeError: CUDA error: unspecified launch failure\\x1b[0m", file=sys.stderr, flush=True)
        sys.exit(9)
    if mode == "falls" and attempt == 2 and step == 90:
        time.sleep(3600)
    time.sleep(pace)
"""


def main() -> int:
    """Take every picture, and return the exit status."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "HOME": folder}
        (Path(folder) / "train.py").write_text(TRAIN)
        programs = [
            _begin(folder, env, "up", "--slots", str(RANKS + 24), "--gpus", "8", "--port", "0",
                "--name", "gpu-01")
        ]  # fmt: skip
        try:
            url_file = Path(folder) / "holdfast-data" / "url"
            while not url_file.exists():
                time.sleep(0.2)
                if programs[0].poll() is not None:
                    return 1
            programs += _add_hosts(folder, env, url_file.read_text().strip())
            jobs = _submit(folder, env)
            _take(folder, env, jobs)
        finally:
            for program in reversed(programs):
                program.send_signal(signal.SIGTERM)
            for program in programs:
                program.wait(60)
    return 0


def _begin(folder: str, env: dict[str, str], *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*HOLDFAST, *words],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _run(folder: str, env: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [*HOLDFAST, *words],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def _add_hosts(folder: str, env: dict[str, str], url: str) -> list[subprocess.Popen[bytes]]:
    agents = []
    for name in ("gpu-02", "gpu-03", "gpu-04"):
        token = json.loads(_run(folder, env, "token", "create", "--role", "join", "--json"))
        agents.append(
            _begin(folder, env, "agent", "--join", url, "--token", token["secret"], "--slots", "2",
                "--gpus", "8", "--name", name, "--queues", "gpu", "--state", f"{folder}/{name}")
        )  # fmt: skip
    return agents


def _submit(folder: str, env: dict[str, str]) -> dict[str, str]:
    """Submit the work, and return the ids of its jobs by name."""
    python = [sys.executable, "train.py"]
    watched = ["--stall-timeout", "8s", "--silence-limit", "12s", "--retry-delay", "2s"]
    made = {}
    for queue in ("gpu", "render"):
        _run(folder, env, "queues", "set", queue)
    _run(folder, env, "queues", "pause", "render", "--reason", "new driver on the render hosts")
    while len(json.loads(_run(folder, env, "hosts", "--json"))) < 4:
        time.sleep(0.5)
    _run(
        folder, env, "hosts", "quarantine", "gpu-04", "--reason", "GPU 5 fell off the bus (Xid 79)"
    )
    for name, options, command in (
        ("llama-sft", ["--gpus", "2", "--tasks", "4", "--max-retries", "3", *watched],
            [*python, "0.25", "falls"]),
        ("vit-pretrain", ["--gpus", "6"], [*python, "0.4", "plain"]),
        ("moe-pretrain", ["--tasks", str(RANKS), "--cpus", "1", "--queue", "cpu"],
            [*python, "1", "gang"]),
        ("eval-nightly", ["--gpus", "8", "--tasks", "3"], ["true"]),
        ("tokenize", ["--max-retries", "1", "--retry-delay", "1s"],
            ["sh", "-c", "echo 'no such shard: 0041' >&2; exit 3"]),
        ("export", [], ["sleep", "1"]),
        ("render-42", ["--queue", "render"], ["true"]),
    ):  # fmt: skip
        made[name] = _run(folder, env, "submit", "--name", name, *options, "--", *command)
    _run(folder, env, "submit", "--array", "0-7", "--name", "sweep", "--", "sleep", "6")
    _run(folder, env, "queues", "pause", "render", "--reason", "new driver on the render hosts")
    _run(
        folder, env, "hosts", "quarantine", "gpu-04", "--reason", "GPU 5 fell off the bus (Xid 79)"
    )
    time.sleep(110)  # the trip of attempt 2, and the ledger's first minute
    return made


def _take(folder: str, env: dict[str, str], jobs: dict[str, str]) -> None:
    link = json.loads(_run(folder, env, "dashboard", "--json"))["url"]
    base = link.partition("/sign-in")[0]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=os.environ.get("HOLDFAST_TEST_CHROMIUM"), args=["--no-sandbox"]
        )
        page = chromium.new_page(viewport={"width": 1200, "height": 960})
        page.goto(link)
        page.wait_for_url(f"{base}/")
        for name, path in (
            ("now", "/"),
            ("jobs", "/jobs"),
            ("job", f"/jobs/{jobs['llama-sft']}"),
            ("report", "/report?last=24h&by=job"),
        ):
            page.goto(base + path)
            _shoot(page, name)
        page.emulate_media(color_scheme="dark")
        page.goto(f"{base}/jobs/{jobs['moe-pretrain']}?tab=ranks")
        _shoot(page, "gang-dark")
        chromium.close()


def _shoot(page: Page, name: str) -> None:
    page.wait_for_timeout(1500)
    page.screenshot(path=PICTURES / f"{name}.png")
    print(f"docs/pictures/{name}.png")


if __name__ == "__main__":
    sys.exit(main())
