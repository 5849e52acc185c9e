"""`holdfast notebook` over a stand-in for Jupyter, which checks its token."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.system.cluster import Cluster, clean_environment
from tests.waits import wait_exit, wait_until

pytestmark = pytest.mark.slow

JUPYTER = f"""#!{sys.executable}
import os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path.endswith("?token=" + os.environ["JUPYTER_TOKEN"])
        self.send_response(200 if known or self.path == "/api" else 403)
        self.end_headers()
        self.wfile.write(" ".join(sys.argv[1:]).encode())
print("token is", os.environ["JUPYTER_TOKEN"], flush=True)
port = next(word for word in sys.argv if word.startswith("--port=")).removeprefix("--port=")
HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


@pytest.fixture(scope="module", autouse=True)
def host(shared: Cluster) -> None:
    shared.add_host("inside", cpu_slots=4)


def start(cluster: Cluster, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    token = cluster.controller.token_file.read_text().strip()
    with open(folder / "seen", "wb") as seen:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.cli", "notebook", *words],
            stdin=subprocess.DEVNULL,
            stdout=seen,
            stderr=seen,
            cwd=folder,
            env=clean_environment(HOLDFAST_URL=cluster.controller.url, HOLDFAST_TOKEN=token),
        )


def test_a_notebook_is_reached_with_a_token_that_is_a_secret_of_its_job(
    shared: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "jupyter-lab").write_text(JUPYTER)
    (tmp_path / "jupyter-lab").chmod(0o755)
    path = f"PATH={tmp_path}:{os.environ['PATH']}"
    process = start(shared, tmp_path, "--env", path, "--", "--more")
    try:
        seen = tmp_path / "seen"
        wait_until(lambda: b"?token=" in seen.read_bytes(), 30)
        text = seen.read_text()
        job_id = re.search(r"notebook is job (\S+)", text)[1]  # type: ignore[index]
        url = re.search(r"http://127\.0\.0\.1:\d+/\?token=(\S+)", text)
        assert url is not None
        with urllib.request.urlopen(url[0], timeout=30) as answer:
            arguments = answer.read().decode()
        assert "--more" in arguments
        assert url[1] not in arguments
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(url[0][:-3], timeout=30)
        spec = shared.client.job(job_id).spec
        assert spec.interactive
        assert url[1] not in str(spec)
        wait_until(lambda: b"token is ****" in shared.output(job_id), 10)
        assert url[1].encode() not in shared.output(job_id)
    finally:
        process.send_signal(signal.SIGINT)
        assert wait_exit(process) == 130  # nobody can be asked: the job goes on
    assert f"holdfast notebook --job {job_id}" in seen.read_text()
    assert shared.client.job(job_id).state.value == "running"
    again = start(shared, tmp_path, "--job", job_id)
    wait_until(lambda: url[1] in seen.read_text(), 30)
    shared.client.cancel(job_id)
    assert wait_exit(again) != 0


def test_a_host_without_jupyter_is_told_what_to_install(shared: Cluster, tmp_path: Path) -> None:
    process = start(shared, tmp_path, "--env", "PATH=/bin-of-nobody")
    assert wait_exit(process) == 127
    assert "pip install jupyterlab" in (tmp_path / "seen").read_text()
