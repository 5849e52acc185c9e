"""`make demo-pipeline`: an image pipeline on this machine. Exit 0 only if every check holds.

Images that the demo makes are decoded, each gets three variants by a "model" that takes seconds to
load, and all come together in a contact sheet. How many images there are is known only when the
first node has run. One call hangs on purpose: its stall window frees it, it alone is charged, and
its second attempt ends the work. The picture is `demo-run/out/RUN/sheet/0/contact-sheet.png`.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRATCH = ROOT / "demo-run"
HOLDFAST = [sys.executable, "-m", "holdfast"]
BEGAN = time.monotonic()
IMAGES, SIDE = 8, 96
sys.path.insert(0, str(ROOT / "examples"))

from pipeline_tasks import LOAD_SECONDS, STYLES, decode, list_images, sheet, variant, write_png  # noqa: E402  found by the line above

from holdfast import Workflow  # noqa: E402  found by the line above
from holdfast.cli.workflows.tree import draw_run  # noqa: E402  found by the line above
from holdfast.client import Client  # noqa: E402  found by the line above
from holdfast.client.workflows.artifacts import list_artifacts  # noqa: E402  found by the line above
from holdfast.client.workflows.build import WorkflowNode, WorkflowRun  # noqa: E402  found by the line above


def say(text: str) -> None:
    """Print one line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - BEGAN:5.1f} s] {text}", flush=True)


def make_images(folder: Path) -> None:
    """Write pictures of rings, each with its own centre and colour."""
    folder.mkdir(parents=True)
    for number in range(IMAGES):
        turn = number / IMAGES * math.tau
        x0, y0 = SIDE * (0.5 + 0.3 * math.cos(turn)), SIDE * (0.5 + 0.3 * math.sin(turn))
        pixels = bytearray()
        for y in range(SIDE):
            for x in range(SIDE):
                ring = math.sin(math.hypot(x - x0, y - y0) / 4)
                light = int(128 + 100 * ring)
                parts = (math.cos(turn), math.cos(turn + 2), math.cos(turn + 4))
                pixels += bytes(max(0, min(255, int(light * (0.75 + 0.35 * p)))) for p in parts)
        write_png(folder / f"ring-{number}.png", SIDE, SIDE, bytes(pixels))


def start_up() -> subprocess.Popen[bytes]:
    """Start `holdfast up` for the functions of `pipeline_tasks`, and wait until it answers."""
    log = (SCRATCH / "up.log").open("wb")
    environ = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
    words = ["up", "--slots", "2", "--port", "0", "--app", "pipeline_tasks"]
    words += ["--app-path", str(ROOT / "examples")]
    up = subprocess.Popen([*HOLDFAST, *words], cwd=SCRATCH, stdout=log, stderr=log, env=environ)
    until = time.monotonic() + 60
    while not (SCRATCH / "holdfast-data" / "url").exists():
        if up.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"`holdfast up` is not ready:\n{(SCRATCH / 'up.log').read_text()}")
        time.sleep(0.1)
    return up


def build() -> tuple[Workflow, list[WorkflowNode], WorkflowNode]:
    """Build the workflow: a list known only at run time, fanned out three times, and in again."""
    wf = Workflow("contact-sheet", out_dir=str(SCRATCH / "out"))
    images = wf.add(list_images, str(SCRATCH / "images"))
    decoded = wf.map(decode, images.out)
    variants = [
        wf.map(variant, decoded.out, style=style, name=style,
               wedges="ring-2.png" if style == "ink" else "")
        for style in STYLES
    ]  # fmt: skip
    last = wf.add(sheet, [made.out for made in variants])
    return wf, variants, last


def read_metric(client: Client, name: str) -> float:
    """Return one figure of `/metrics`."""
    request = urllib.request.Request(f"{client.place.url}/metrics")
    request.add_header("Authorization", f"Bearer {client.place.token}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} "))


def check(run: WorkflowRun, variants: list[WorkflowNode], last: WorkflowNode) -> list[str]:
    """Return the claims that do not hold; print all."""
    client = Client()
    failed = []

    def expect(claim: str, holds: bool, seen: object = "") -> None:
        say(f"{'ok  ' if holds else 'NOT '} {claim}" + (f" ({seen})" if str(seen) else ""))
        if not holds:
            failed.append(claim)

    picture = Path(str(run.result(last)))
    files = list_artifacts(run.view)
    expect("the picture is on disk", picture.is_file() and picture.stat().st_size > 10_000, picture)
    expect("every image has every variant", len(files) == IMAGES * (1 + len(STYLES)) + 1,
           f"{len(files)} files")  # fmt: skip
    sets = [client.call_set(str(run.node(node).ref)) for node in variants]
    results = [client.call_results(found.id).results for found in sets]
    tries = [result.attempts for part in results for result in part]
    expect(
        "one call wedged once, and it alone ran again",
        sorted(tries) == [1] * (len(tries) - 1) + [2],
    )
    chain = client.call_view(sets[1].id, 2).failures
    expect("its chain says why", bool(chain) and "stall" in str(chain[0].cause),
           chain[0].reason if chain else "")  # fmt: skip
    loads = read_metric(client, 'holdfast_model_load_seconds_count{model="styler"}')
    warm = 1 - loads / (len(tries) + 1)
    expect("calls found their model warm", loads >= 1 and warm >= 0.8,
           f"{warm:.0%} of {len(tries) + 1} calls, {loads:g} loads of {LOAD_SECONDS:g} s")  # fmt: skip
    client.close()
    return failed


def main() -> None:
    """Run the demo."""
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir()
    os.chdir(SCRATCH)
    make_images(SCRATCH / "images")
    say(f"made {IMAGES} images; starting holdfast up")
    up = start_up()
    try:
        wf, variants, last = build()
        run = wf.submit()
        say(f"run {run.id}: list → decode → {', '.join(STYLES)} → sheet")
        view = run.wait(180)
        print("\n" + draw_run(view, run.nodes(), datetime.now(UTC)) + "\n")
        if view.state != "succeeded":
            raise SystemExit(f"the run {view.state}: {view.reason}")
        failed = check(run, variants, last)
    finally:
        up.terminate()
        up.wait(30)
    if failed:
        raise SystemExit(f"{len(failed)} claims did not hold")
    say("every check holds")


if __name__ == "__main__":
    main()
