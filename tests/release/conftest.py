"""A release that was built, an index of it on loopback, and environments that it is installed in."""

from __future__ import annotations

import hashlib
import http.server
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from holdfast.version import DISTRIBUTION
from tests.system.up.up_rig import environment
from tests.waits import run_patiently

UV = Path(__file__).parents[2] / ".uv" / "bin" / "uv"


@pytest.fixture(scope="session")
def dist() -> Path:
    """The folder of the release."""
    named = os.environ.get("HOLDFAST_TEST_RELEASE")
    if not named:
        pytest.skip("no release was built: `make release` does it")
    return Path(named)


@pytest.fixture(scope="session")
def index(dist: Path) -> Iterator[str]:
    """The address of a package index that has the release alone (PEP 503)."""
    files = {path.name: path.read_bytes() for path in dist.iterdir()}
    links = "".join(
        f'<a href="/files/{name}#sha256={hashlib.sha256(data).hexdigest()}">{name}</a>\n'
        for name, data in files.items()
    )
    answers = {f"/simple/{DISTRIBUTION}/": links.encode()}
    answers |= {f"/files/{name}": data for name, data in files.items()}

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:  # uv asks so for what a file has
            self._begin(answers.get(self.path))

        def do_GET(self) -> None:
            data = answers.get(self.path)
            self._begin(data)
            self.wfile.write(data or b"")

        def _begin(self, data: bytes | None) -> None:
            self.send_response(200 if data is not None else 404)
            self.send_header("Content-Length", str(len(data or b"")))
            self.send_header("Content-Type", "text/html" if "simple" in self.path else "zip")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/simple/"
        server.shutdown()
        thread.join()


def run(
    *words: str | Path,
    env: Mapping[str, str] = MappingProxyType({}),
    cwd: Path | None = None,
    seconds: float = 120,
) -> str:
    """Run a program to its good end; return what it printed."""
    done: subprocess.CompletedProcess[str] = run_patiently(
        [str(word) for word in words],
        env=environment() | dict(env),
        cwd=cwd,
        capture_output=True,
        text=True,
        seconds=seconds,
    )
    assert done.returncode == 0, f"{words}: {done.stderr}{done.stdout}"
    return done.stdout


@pytest.fixture(scope="session")
def slim(index: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the slim set, installed by pip and by name."""
    folder = tmp_path_factory.mktemp("slim") / "env"
    run(UV, "venv", "--seed", "--quiet", folder)
    run(
        folder / "bin" / "pip",
        "install",
        "--quiet",
        DISTRIBUTION,
        env={"PIP_EXTRA_INDEX_URL": index},
    )
    return folder
