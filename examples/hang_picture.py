"""Draw the moving picture of a hang that is freed (docs/pictures/hang.svg) from a real run: the script
of the tour hangs at step 50, Holdfast ends it, and it goes on from its checkpoint (`make hang-picture`)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "hang.svg"
HOLDFAST = [sys.executable, "-m", "holdfast"]
PATIENCE_SECONDS = 120
WIDTH, TRACK, LEFT, REST_SECONDS = 860, 700, 130, 4.0


class Run(NamedTuple):
    """What happened, in seconds since the first beat: beats as (second, step) of each attempt, and
    the lines that the command printed as (second, line)."""

    attempts: list[list[tuple[float, int]]]
    lines: list[tuple[float, str]]


def main() -> int:
    """Run the tour's script, draw what happened, and return the exit status."""
    run = record()
    PICTURE.write_text(draw(run))
    print(f"{PICTURE}: {len(run.attempts)} attempts, {run.lines[-1][0]:.1f} s")
    return 0


def read_script() -> str:
    """Return the script of the tour, which also notes when it beats."""
    tour = (ROOT / "docs" / "guides" / "tour.md").read_text()
    (script,) = re.findall(r"^```python\n(# hangs\.py.*?)^```$", tour, re.S | re.M)
    beat = "    holdfast.beat(step, 100)\n"
    assert beat in script
    note = '    print(time.time(), step, file=open("beats", "a"))\n'
    return str(script).replace(beat, beat + note)


def record() -> Run:
    """Run the script under a `holdfast up` of its own."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hangs.py").write_text(read_script())
        up = subprocess.Popen(
            [*HOLDFAST, "up", "--port", "0"], cwd=folder, stdout=subprocess.DEVNULL
        )
        try:
            _wait_for(Path(folder) / "holdfast-data" / "url", up)
            words = [*HOLDFAST, "run", "--stall-timeout", "5s", "--", sys.executable, "hangs.py"]
            job = subprocess.Popen(
                words, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            assert job.stdout is not None
            lines = [(time.time(), line.rstrip()) for line in job.stdout]
            if job.wait(PATIENCE_SECONDS) != 0:
                raise SystemExit("\n".join(line for _, line in lines))
        finally:
            up.send_signal(signal.SIGINT)
            up.wait(PATIENCE_SECONDS)
        beats = [line.split() for line in (Path(folder) / "beats").read_text().splitlines()]
    begin = float(beats[0][0])
    attempts: list[list[tuple[float, int]]] = [[]]
    for at, step in beats:
        if attempts[-1] and (int(step) <= attempts[-1][-1][1] or _is_gap(attempts[-1], at, begin)):
            attempts.append([])
        attempts[-1].append((float(at) - begin, int(step)))
    return Run(attempts, [(at - begin, line) for at, line in lines])


def _is_gap(beats: list[tuple[float, int]], at: str, begin: float) -> bool:
    return float(at) - begin - beats[-1][0] > 2


def _wait_for(file: Path, program: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not file.exists():
        if program.poll() is not None or time.monotonic() > end:
            raise SystemExit("holdfast up did not start")
        time.sleep(0.1)


def draw(run: Run) -> str:
    """Return the animated picture: a bar for each attempt, and the lines as they came. Where motion
    is not wanted, its last state stands still."""
    whole = run.lines[-1][0] + REST_SECONDS
    rules, shapes = [], []

    def show(name: str, at: float, shape: str) -> None:
        part = 100 * max(at, 0.0) / whole
        rules.append(
            f"@keyframes {name}{{0%,{part:.2f}%{{opacity:0}}{part + 0.01:.2f}%{{opacity:1}}}}"
        )
        shapes.append(
            shape.replace("<", f'<g class="a" style="animation-name:{name}"><', 1) + "</g>"
        )

    for number, beats in enumerate(run.attempts):
        y = 30 + 46 * number
        shapes.append(f'<text x="16" y="{y + 17}">attempt {number + 1}</text>')
        shapes.append(f'<rect class="t" x="{LEFT}" y="{y}" width="{TRACK}" height="24" rx="4"/>')
        (begin, first), (end, last) = beats[0], beats[-1]
        x, width = LEFT + TRACK * first / 100, TRACK * (last + 1 - first) / 100
        parts = (100 * begin / whole, 100 * end / whole)
        rules.append(
            f"@keyframes b{number}{{0%,{parts[0]:.2f}%{{transform:scaleX(0)}}"
            f"{parts[1]:.2f}%,100%{{transform:scaleX(1)}}}}"
        )
        shapes.append(
            f'<rect class="w a" style="animation-name:b{number};transform-origin:{x:.1f}px 0" '
            f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="24" rx="4"/>'
        )
    (silent, step), again = run.attempts[0][-1], run.attempts[1][0][0]
    edge = LEFT + TRACK * (step + 1) / 100
    show(
        "hang",
        silent + 1,
        f'<text class="h" x="{edge + 10:.0f}" y="47">step {step + 1}: no beat …</text>',
    )
    stopped = next(at for at, line in run.lines if "requeued" in line)
    show("stop", stopped, f'<rect class="s" x="{edge:.1f}" y="30" width="5" height="24"/>')
    wait = (
        f"stopped after {stopped - silent:.0f} s of silence, on again {again - stopped:.1f} s later"
    )
    show("freed", again, f'<text class="h" x="{LEFT}" y="136">{wait}</text>')
    y = 168
    for number, (at, line) in enumerate(
        [(-1.0, "$ holdfast run --stall-timeout 5s -- python hangs.py"), *run.lines]
    ):
        for part in textwrap.wrap(line, 110, subsequent_indent="  "):
            text = escape(part).replace("  ", "\u00a0\u00a0")
            show(f"l{number}", at, f'<text class="m" x="16" y="{y}">{text}</text>')
            y += 19
    style = (
        "svg{background:#fff}text{font:14px system-ui,sans-serif;fill:#24292f}.m{font:12px ui-monospace,monospace}"
        ".t{fill:#eaeef2}.w{fill:#2da44e}.s{fill:#cf222e}.h{fill:#9a6700}"
        "@media(prefers-color-scheme:dark){svg{background:#0d1117}text{fill:#e6edf3}.t{fill:#21262d}"
        ".w{fill:#3fb950}.s{fill:#f85149}.h{fill:#d29922}}"
        f".a{{animation:{whole:.1f}s linear infinite both}}"
        "@media(prefers-reduced-motion:reduce){.a{animation:none!important}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img">'
        "<title>A job hangs, Holdfast ends it, and it goes on from its checkpoint</title>"
        f"<style>{style}{''.join(dict.fromkeys(rules))}</style>{''.join(shapes)}</svg>\n"
    )


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
