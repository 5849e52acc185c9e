"""Take the pictures of the dashboard that stand in the docs: a real `holdfast up` with work on it, in a
real Chromium (`make pictures`)."""

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
TRAIN = """
import os, sys, time, holdfast
slow = float(sys.argv[1])
begin = int((holdfast.checkpoint.load() or b"0").decode())
for step in range(begin, 400):
    holdfast.beat(step, total=400)
    if step % 20 == 0:
        holdfast.checkpoint.save(str(step).encode(), step=step)
    print(f"step {step}  \\x1b[32mloss\\x1b[0m {2.4 / (1 + step / 60):.4f}", flush=True)
    if len(sys.argv) > 2 and int(os.environ["HOLDFAST_ATTEMPT"]) == 1 and step == 60:
        sys.exit(9)
    time.sleep(slow)
"""


def main() -> int:
    """Take every picture, and return the exit status."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "HOME": folder}
        (Path(folder) / "train.py").write_text(TRAIN)
        up = subprocess.Popen(
            [*HOLDFAST, "up", "--slots", "4", "--gpus", "8", "--port", "0"],
            cwd=folder, env=env, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            url_file = Path(folder) / "holdfast-data" / "url"
            while not url_file.exists():
                time.sleep(0.2)
                if up.poll() is not None:
                    return 1
            jobs = _submit(folder, env)
            _take(folder, env, jobs)
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(30)
    return 0


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


def _submit(folder: str, env: dict[str, str]) -> dict[str, str]:
    """Submit the work, and return the ids of its jobs by name."""
    python = [sys.executable, "train.py"]
    made = {}
    for name, options, command in (
        ("vit-pretrain", ["--gpus", "2"], [*python, "0.4"]),
        (
            "llama-sft",
            ["--gpus", "1", "--tasks", "4", "--max-retries", "2", "--retry-delay", "1s"],
            [*python, "0.25", "falls"],
        ),
        ("eval-nightly", ["--gpus", "8"], ["true"]),
        (
            "tokenize",
            ["--max-retries", "1", "--retry-delay", "1s"],
            ["sh", "-c", "echo 'no such shard: 0041' >&2; exit 3"],
        ),
        ("export", [], ["sleep", "1"]),
    ):  # fmt: skip
        made[name] = _run(folder, env, "submit", "--name", name, *options, "--", *command)
    time.sleep(75)  # the ledger closes its first minute
    return made


def _take(folder: str, env: dict[str, str], jobs: dict[str, str]) -> None:
    link = json.loads(_run(folder, env, "dashboard", "--json"))["url"]
    base = link.partition("/sign-in")[0]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=os.environ.get("HOLDFAST_TEST_CHROMIUM"), args=["--no-sandbox"]
        )
        page = chromium.new_page(viewport={"width": 1200, "height": 800})
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
        page.goto(f"{base}/jobs/{jobs['llama-sft']}?tab=ranks")
        _shoot(page, "gang-dark")
        chromium.close()


def _shoot(page: Page, name: str) -> None:
    page.wait_for_timeout(1500)
    page.screenshot(path=PICTURES / f"{name}.png")
    print(f"docs/pictures/{name}.png")


if __name__ == "__main__":
    sys.exit(main())
