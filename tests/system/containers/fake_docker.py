"""A stand-in for docker where there is no engine: a client that keeps what it was called with, and
an engine that runs programs.

`fake_docker.py engine FOLDER` is the engine: as docker's, it and not the client is the parent of
what runs. Otherwise this is the client, and FAKE_DOCKER names the folder. An image whose name has
"gone" in it is in no registry, "slow" takes for ever.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TAKES_VALUE = (
    "--name",
    "--label",
    "--env",
    "--env-file",
    "--volume",
    "--filter",
    "--format",
    "--type",
    "--signal",
)


def serve(folder: Path) -> None:
    """Start what clients ask for, and note how it ends."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    (folder / "engine").write_text(str(os.getpid()))
    while (folder / "engine").exists():
        for request in folder.glob("*.start"):
            name = request.stem
            state = read(folder, name)
            with (folder / f"{name}.out").open("wb") as out:
                running[name] = subprocess.Popen(
                    [state["program"], *state["command"]],
                    env=state["env"],
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            request.unlink()
            state["State"] |= {
                "Status": "running",
                "Running": True,
                "Pid": running[name].pid,
                "StartedAt": "2026-01-01T00:00:00Z",
            }
            write(folder, name, state)
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                if (folder / f"{name}.json").exists():
                    state = read(folder, name)
                    code = process.returncode
                    state["State"] |= {
                        "Status": "exited",
                        "Running": False,
                        "Pid": 0,
                        "ExitCode": code if code >= 0 else 128 - code,
                    }
                    write(folder, name, state)
        time.sleep(0.01)
    for process in running.values():
        process.kill()
        process.wait()


def read(folder: Path, name: str) -> Any:
    try:
        return json.loads((folder / f"{name}.json").read_text())
    except FileNotFoundError:
        sys.exit(f"Error response from daemon: No such container: {name}")


def write(folder: Path, name: str, state: Any) -> None:
    part = folder / f".{name}.{os.getpid()}"
    part.write_text(json.dumps(state))
    part.rename(folder / f"{name}.json")


def split(words: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Options with their values, and what follows them."""
    options: list[tuple[str, str]] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        options.append((name, value if equals else rest.pop(0) if name in TAKES_VALUE else ""))
    return options, rest


def image_path(folder: Path, image: str) -> Path:
    return folder / f"image-{image.replace('/', '_')}"


def find_image(folder: Path, image: str) -> int:
    if not image_path(folder, image).exists():
        sys.exit(f"[]\nError response from daemon: No such image: {image}")
    print(f"sha256:{image}")
    return 0


def pull(folder: Path, image: str) -> int:
    print(
        f"v1: Pulling from {image}\n0123456789ab: Pulling fs layer\nba9876543210: Pulling fs layer",
        flush=True,
    )
    if "slow" in image:
        time.sleep(600)
    if "gone" in image:
        sys.exit(
            f"Error response from daemon: manifest for {image} not found: manifest unknown: "
            "manifest unknown"
        )
    print("0123456789ab: Pull complete", flush=True)
    image_path(folder, image).touch()
    return 0


def create(folder: Path, options: list[tuple[str, str]], rest: list[str]) -> int:
    env = {}
    for name, value in options:
        if name == "--env-file":
            env |= dict(line.split("=", 1) for line in Path(value).read_text().splitlines())
        elif name == "--env":
            env[value] = os.environ[value]
    given = dict(options)
    state = {
        "labels": [value for name, value in options if name == "--label"], "env": env, "command": rest[1:], "argv": sys.argv[1:],
        "program": given.get("--entrypoint") or os.environ["FAKE_PROGRAM"],
        "State": {"Status": "created", "Running": False, "Pid": 0, "ExitCode": 0, "OOMKilled": False,
                  "StartedAt": "0001-01-01T00:00:00Z"},
    }  # fmt: skip
    write(folder, given["--name"], state)
    return 0


def start(folder: Path, name: str, *, anew: bool = True) -> int:
    read(folder, name)
    if anew:
        (folder / f"{name}.start").touch()
    out, state = folder / f"{name}.out", read(folder, name)
    sent = 0 if anew else out.stat().st_size
    while True:
        over = state["State"]["Status"] == "exited"
        data = out.read_bytes()[sent:] if out.exists() else b""
        sent += len(data)
        os.write(1, data)
        if over:
            return int(state["State"]["ExitCode"])
        time.sleep(0.01)
        state = read(folder, name)


def remove(folder: Path, names: list[str]) -> int:
    for name in names:
        pid = read(folder, name)["State"]["Pid"]
        if pid:
            os.kill(pid, signal.SIGKILL)
        (folder / f"{name}.json").unlink()
    return 0


def run(folder: Path, words: list[str]) -> int:
    """Be the client."""
    with (folder / "calls").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    if (folder / "down").exists():
        sys.exit(
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker "
            "daemon running?"
        )
    if words[0] == "image":
        return find_image(folder, words[-1])
    options, rest = split(words[1:])
    if words[0] == "pull":
        return pull(folder, rest[0])
    if words[0] == "create":
        return create(folder, options, rest)
    if words[0] in ("start", "attach"):
        return start(folder, rest[0], anew=words[0] == "start")
    if words[0] == "inspect":
        print(json.dumps([{"State": read(folder, rest[0])["State"]}]))
        return 0
    if words[0] == "kill":
        pid = read(folder, rest[0])["State"]["Pid"]
        if not pid:
            sys.exit(f"Error response from daemon: container {rest[0]} is not running")
        os.kill(pid, signal.SIGTERM)
        return 0
    if words[0] == "rm":
        return remove(folder, rest)
    assert words[0] == "ps", words
    wanted = dict(options)["--filter"].removeprefix("label=")
    for path in folder.glob("*.json"):
        if wanted in json.loads(path.read_text())["labels"]:
            print(path.stem)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["engine"]:
        serve(Path(sys.argv[2]))
    else:
        sys.exit(run(Path(os.environ["FAKE_DOCKER"]), sys.argv[1:]))
