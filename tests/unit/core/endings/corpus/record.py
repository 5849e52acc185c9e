"""Run the programs of programs.toml once each, and write how each ended to endings.json.

    python -m tests.unit.core.endings.corpus.record --python PATH [NAME …]

PATH is a Python with torch, requests and click. Without names, all programs run. It takes root on
Linux (mounts of its own, a user without rights, no network), and gcc, node, java, perl, rust, Slurm's
commands and so on. Programs run in folders of their own and talk to loopback only.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

from tests.waits import run_patiently

HERE = Path(__file__).parent
MAX_SECONDS = 60.0
MAX_CHARS = 16_384  # of a log's tail, as agents send it


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers by path: `/503` with that status, the others with an ending of their own."""

    def do_GET(self) -> None:
        word = self.path.strip("/")
        if word == "closed":
            return
        if word == "slow":
            time.sleep(2.0)
        if word == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(b"x" * 100)
            return
        self.send_response(int(word) if word.isdigit() else 200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def wrap(program: dict[str, Any]) -> list[str]:
    """Return the command of a program, with what it needs around it."""
    needs, run = program.get("with", "").split(), program["run"]
    command = ["bash", "-c", run]
    if "nobody" in needs:
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
    inner = shlex.join(command)
    if "full" in needs:
        inner = f"mkdir full; mount -t tmpfs -o size=1m none full; exec {inner}"
        return ["unshare", "--mount", "bash", "-c", inner]
    if "read-only" in needs:
        inner = f"mkdir ro; mount -t tmpfs -o ro none ro; exec {inner}"
        return ["unshare", "--mount", "bash", "-c", inner]
    if "no-network" in needs:
        return ["unshare", "--net", *command]
    return command


def tidy(text: str, folder: str, python: Path) -> str:
    """Return the log without the names of this machine's folders and ports of chance."""
    for path, name in (
        (folder, "/home/ada/job"),
        (str(python.parents[1]), "/opt/venv"),
        (sys.base_prefix, "/usr/local"),
        (os.uname().nodename, "n7"),
    ):
        text = text.replace(path, name)
    text = re.sub(r"/(?:root|home)/\.?\w*(?:/\.pyenv/versions/[\d.]+)", "/usr/local", text)
    text = re.sub(r"/root/\.(?:cargo|rustup)\S*", "/usr/local/rust", text)
    return text.replace("/root/", "/home/ada/")[-MAX_CHARS:]


def run(program: dict[str, Any], python: Path, port: int) -> dict[str, Any]:
    """Run one program to its end, and return the facts of it."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        spare = free.getsockname()[1]
        free.close()
        os.chmod(folder, 0o777)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "LANG": "C.UTF-8",
            "PYTHON": str(python),
            "PORT": str(port),
            "FREE": str(spare),
        }
        log = Path(folder) / ".log"
        with log.open("wb") as out:
            ended = run_patiently(
                wrap(program),
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                seconds=MAX_SECONDS,
            )
        tail = tidy(log.read_text(errors="replace"), folder, python)
    code = ended.returncode
    assert code != 0, f"{program['name']} did not fail: {tail}"
    return {("signal" if code < 0 else "exit_code"): abs(code), "log_tail": tail}


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    programs = tomllib.loads((HERE / "programs.toml").read_text())["program"]
    path = HERE / "endings.json"
    endings = json.loads(path.read_text()) if path.exists() else {}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for program in programs:
        if not asked.names or program["name"] in asked.names:
            endings[program["name"]] = run(program, asked.python, server.server_address[1])
    names = [program["name"] for program in programs]
    kept = {name: endings[name] for name in names if name in endings}
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
