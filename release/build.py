"""Build a release of the commit that is checked out: `make release`.

An sdist of the commit, and three wheels of that sdist: pure, and for Linux on x86-64 and arm64 with
their native parts. All is built twice in folders of other names and must be equal byte by byte, then
twine checks it. docs/reference/releasing.md says what follows.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = ROOT / ".uv" / "bin" / "uv"
TARGETS = ("pure", "linux-x86_64", "linux-aarch64")
TWINE = "twine==7.0.0"


def main() -> int:
    """Build into the folder that is named, and return the exit status."""
    (to,) = map(Path, sys.argv[1:])
    if ask_git("status", "--porcelain"):
        print("release: what is not committed is not in it", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="holdfast-release-") as folder:
        first, second = (build(Path(folder) / name) for name in ("first", "another"))
        if differing := {name for name in {*first, *second} if first.get(name) != second.get(name)}:
            print(f"release: two builds differ: {', '.join(sorted(differing))}", file=sys.stderr)
            return 1
        built = Path(folder) / "first" / "dist"
        run([str(UV), "tool", "run", "--from", TWINE, "twine", "check", "--strict",
             *(str(built / name) for name in first)])  # fmt: skip
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        for name, digest in sorted(first.items()):
            shutil.copy(built / name, to / name)
            print(f"{digest}  {name}  {(to / name).stat().st_size:,} bytes")
    return 0


def build(folder: Path) -> dict[str, str]:
    """Build everything in an empty folder, into `dist` there. Return name → SHA-256."""
    commit, built = folder / "commit", folder / "dist"
    commit.mkdir(parents=True)
    archive = subprocess.Popen(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE)
    with tarfile.open(fileobj=archive.stdout, mode="r|") as files:
        files.extractall(commit, filter="data")
    if archive.wait() != 0:
        raise SystemExit("release: this is no clone of the repository")
    times = {"SOURCE_DATE_EPOCH": ask_git("log", "-1", "--format=%ct")}
    words = [str(UV), "build", "--quiet", "--python", sys.executable, "--out-dir", str(built),
             "--build-constraints", str(ROOT / "release" / "constraints.txt")]  # fmt: skip
    run([*words, "--sdist", str(commit)], times)
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as files:
        files.extractall(folder, filter="data")
    for target in TARGETS:
        unpacked = str(folder / source.name.removesuffix(".tar.gz"))
        run([*words, "--wheel", unpacked], {**times, "HOLDFAST_BUILD_FOR": target})
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in built.iterdir()
        if path.suffix in (".whl", ".gz")
    }


def ask_git(*words: str) -> str:
    """Return what git prints."""
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def run(words: list[str], more: Mapping[str, str] | None = None) -> None:
    """Run a command, and end the build where that fails."""
    if subprocess.run(words, env={**os.environ, **(more or {})}, check=False).returncode:
        raise SystemExit(f"release: failed: {' '.join(words)}")


if __name__ == "__main__":
    sys.exit(main())
