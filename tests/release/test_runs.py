"""A release runs, installed by the lines of the page of releases: by pip, uv and uvx, from an index."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.version import DISTRIBUTION, VERSION
from tests.release.conftest import UV, run
from tests.release.test_files import PAGE
from tests.system.up.up_rig import environment
from tests.waits import wait_exit, wait_until

TASKS = """
import holdfast
@holdfast.task
def double(x: int) -> int:
    return 2 * x
"""


class Installed:
    """One `up` of an installed release. `program`: the words that run its command. `folder`: where
    it is started."""

    def __init__(self, program: list[str], folder: Path, env: dict[str, str]) -> None:
        self.program, self.folder, self.env = program, folder, env
        self.log = folder / "said"
        self.began = time.monotonic()
        words = [*program, "up", "--port", "0", "--slots", "4", "--gpus", "0", "--app", "mytasks"]
        (folder / "mytasks.py").write_text(TASKS)
        with self.log.open("wb") as said:
            self.process = subprocess.Popen(
                words, cwd=folder, env=environment() | env, stdout=said, stderr=said,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def await_ready(self) -> float:
        """Wait until it is ready; return how many seconds that took."""
        wait_until(
            lambda: "ready at" in self.say() or self.process.poll() is not None, 120, what="up"
        )
        assert "ready at" in self.say(), self.say()
        return time.monotonic() - self.began

    def say(self) -> str:
        return self.log.read_text()

    def run(self, *words: str) -> str:
        """Run a command in its folder."""
        return run(*self.program, *words, cwd=self.folder, env=self.env)

    def stop(self) -> None:
        """Ctrl-C, and it ends well."""
        os.killpg(self.process.pid, signal.SIGINT)
        assert wait_exit(self.process, 60) in (0, -signal.SIGINT), self.say()

    def close(self) -> None:
        """End what is left after a failure; `up` ends its parts."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            wait_exit(self.process, 60)


@pytest.fixture(scope="session")
def tool(index: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command, installed with the server's parts by `uv tool install`, in a place of its own."""
    folder = tmp_path_factory.mktemp("tool")
    env = {"UV_INDEX": index, "UV_TOOL_DIR": str(folder / "tools")}
    env["UV_TOOL_BIN_DIR"] = str(folder / "bin")
    run(UV, "tool", "install", "--quiet", f"{DISTRIBUTION}[server]", env=env, seconds=600)
    return folder / "bin" / "holdfast"


@pytest.fixture
def cache(index: str, tool: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a uv whose package cache is warm and may be deleted: links to the files of
    the usual one, which has what `tool` was made of."""
    env = {"UV_INDEX": index, "UV_CACHE_DIR": str(tmp_path / "cache")}
    usual = run(UV, "cache", "dir").strip()
    subprocess.run(["cp", "-al", usual, tmp_path / "cache"], check=False, capture_output=True)
    run(
        UV,
        "tool",
        "run",
        "--from",
        f"{DISTRIBUTION}[server]",
        "holdfast",
        "version",
        env=env,
        seconds=600,
    )
    yield env
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


def test_the_slim_set_by_pip_has_the_size_and_the_imports_that_the_page_says(slim: Path) -> None:
    page = PAGE.read_text()
    python = slim / "bin" / "python"
    assert run(slim / "bin" / "holdfast", "version").split()[-1] == VERSION
    (packages,) = (slim / "lib").glob("python*/site-packages")
    sizes = {}
    for path in packages.rglob("*"):
        top = path.relative_to(packages).parts[0]
        if (
            path.is_file()
            and path.suffix != ".pyc"
            and not top.startswith(("pip", "_distutils", "setuptools"))
        ):
            sizes[top] = sizes.get(top, 0) + path.stat().st_size
    total = sum(sizes.values())
    stated = re.search(r"slim set.*?(\d+) MB installed, of which (\d+) MB", page, re.S)
    assert stated
    assert total <= int(stated[1]) * 10**6, sizes
    assert sizes["holdfast"] <= int(stated[2]) * 10**6
    for words, pattern in (
        ("import holdfast", r"`import holdfast` loads (\d+) modules"),
        ("import holdfast; holdfast.beat", r"with `holdfast.beat` (\d+)"),
        ("import holdfast; holdfast.Client", r"with `holdfast.Client` (\d+)"),
    ):
        code = f"import sys; before = len(sys.modules); {words}; print(len(sys.modules) - before)"
        most = re.search(pattern, page)
        assert most
        assert int(run(python, "-c", code)) <= int(most[1]), words


def test_what_the_slim_set_lacks_is_named_with_its_line(slim: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [slim / "bin" / "holdfast", "up"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "[server]" in done.stderr
    assert done.stderr.count("\n") <= 2


def test_a_job_a_gang_a_call_and_the_page(tool: Path, tmp_path: Path) -> None:
    up = Installed([str(tool)], tmp_path, {})
    try:
        up.await_ready()
        assert up.run("run", "--", "echo", "hello") == "hello\n"
        ranks = up.run("run", "--tasks", "2", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
        assert {"rank 0 of 2", "rank 1 of 2"} <= set(re.findall(r"rank \d of \d", ranks))
        python = Path(tool.resolve()).with_name("python")
        code = "import mytasks; print(list(mytasks.double.map([1, 2, 3])))"
        assert run(python, "-c", code, cwd=tmp_path) == "[2, 4, 6]\n"
        (link,) = re.findall(
            r"http://holdfast\.localhost:\d+/sign-in#\S+", up.run("dashboard", "--no-open")
        )
        place = urllib.parse.urlsplit(link)
        request = urllib.request.Request(
            f"http://127.0.0.1:{place.port}{place.path}", headers={"Host": place.netloc}
        )
        with urllib.request.urlopen(request) as page:
            assert b"Holdfast" in page.read()
        assert "needs it in its own environment" not in up.say()
        up.stop()
    finally:
        up.close()


def test_up_by_uvx_says_where_jobs_import_and_goes_on_without_its_cache(
    cache: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    program = [str(UV), "tool", "run", "--from", f"{DISTRIBUTION}[server]", "holdfast"]
    up = Installed(program, folder, cache)
    try:
        print(f"ready {up.await_ready():.1f} s after uvx")
        wait_until(lambda: "a job that imports holdfast needs it" in up.say(), what="the sentence")
        (kept,) = (folder / "holdfast-data" / "program").iterdir()
        shutil.rmtree(cache["UV_CACHE_DIR"])
        parts = json.loads((folder / "holdfast-data" / "parts.json").read_text())
        killed = [part["pid"] for part in parts.values()]
        holdfast = [str(kept / "bin" / "python"), "-m", "holdfast"]
        run(*holdfast, "run", "--", "true", cwd=folder)
        for pid in killed:  # each part is started again from the copy
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: up.say().count("starting it again") >= len(killed), what="new parts")
        assert run(*holdfast, "run", "--", "echo", "on", cwd=folder, seconds=240) == "on\n"
        up.stop()
    finally:
        up.close()
