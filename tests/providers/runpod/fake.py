"""A Runpod made from its own description: every request is checked against it, and every answer.

`openapi.json` is the part of Runpod's description of its API v2 that the provider uses, without the
prose. What the description leaves to prose is written here: states that move on, capacity as a 400,
pods that vanish from the list when they are deleted.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from jsonschema_rs import Draft202012Validator

from holdfast.core.fleet.instances import CreateOrder, Machine, Offer

DESCRIPTION: dict[str, Any] = json.loads((Path(__file__).parent / "openapi.json").read_text())
KEY = "rpa_a-key-that-no-message-may-show"
NEXT = {"PROVISIONING": "STARTING", "STARTING": "RUNNING"}


def find_errors(schema: Mapping[str, Any], value: Any) -> list[str]:
    """What a value breaks of a schema of the description."""
    whole = {"components": DESCRIPTION["components"], **schema}
    return [error.message for error in Draft202012Validator(whole).iter_errors(value)]


def resolve(part: Any) -> Any:
    """A part of the description, or what it refers to."""
    while "$ref" in part:
        found: Any = DESCRIPTION
        for word in part["$ref"].split("/")[1:]:
            found = found[word]
        part = found
    return part


class Answer(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers


class FakeRunpod:
    """The account of one user."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []
        self.refused: list[str] = []
        self.failures: list[Answer] = []
        """Answers to the next requests that would change something."""
        self.stuck = False
        self.hanging = threading.Event()
        self.lose_answers = False
        self._count = 0
        self._lock = threading.Lock()

    def act(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, Any]:
        """Check a request against the description and carry it out."""
        url = urlsplit(target)
        self.requests.append((method, url.path))
        words = url.path.strip("/").split("/")
        path, ref = url.path, ""
        if words[:2] == ["v2", "pods"] and len(words) == 3:
            path, ref = "/v2/pods/{id}", words[2]
        operation = DESCRIPTION["paths"].get(path, {}).get(method.lower())
        if operation is None:
            raise Answer(404, f"there is no {method} {url.path}")
        if headers.get("Authorization") != f"Bearer {KEY}":
            raise Answer(401, "invalid API key")
        value = self._check(operation, dict(parse_qsl(url.query)), body)
        if method != "GET" and self.failures:
            raise self.failures.pop(0)
        with self._lock:
            return self._answer(operation, method, path, ref, value)

    def _check(self, operation: Any, query: dict[str, str], body: bytes) -> Any:
        parameters = {p["name"]: p for p in map(resolve, operation.get("parameters", []))}
        errors = [f"{name}: unknown parameter" for name in query.keys() - parameters.keys()]
        for name in query.keys() & parameters.keys():
            schema = resolve(parameters[name]["schema"])
            text: Any = query[name]
            if schema.get("type") == "array":
                text = text.split(",")
            elif schema.get("type") == "integer" and text.isdigit():
                text = int(text)
            errors += find_errors(schema, text)
        value = None
        if "requestBody" in operation:
            value = json.loads(body)
            errors += find_errors(
                operation["requestBody"]["content"]["application/json"]["schema"], value
            )
        elif body:
            errors.append("a body that is not described")
        if errors:
            self.refused += errors
            raise Answer(422, "; ".join(errors))
        return value

    def _answer(
        self, operation: Any, method: str, path: str, ref: str, value: Any
    ) -> tuple[int, Any]:
        if path == "/v2/catalog/gpus":
            return self._checked(operation, 200, {"gpus": CATALOGUE})
        if method == "POST":
            if ("gpu" in value) == ("cpu" in value):
                raise Answer(400, "exactly one of gpu or cpu")
            if value["image"] == "no-room":
                raise Answer(400, "there are no instances currently available")
            return self._checked(operation, 201, self._make(value))
        if path == "/v2/pods":
            return self._checked(
                operation, 200, {"pods": [self._advance(p) for p in self.pods.values()]}
            )
        if ref not in self.pods:
            raise Answer(404, "pod not found")
        if method == "DELETE":
            del self.pods[ref]
            return 204, None
        return self._checked(operation, 200, self._advance(self.pods[ref]))

    def _advance(self, pod: dict[str, Any]) -> dict[str, Any]:
        shown = dict(pod)
        if not self.stuck:
            pod["status"] = NEXT.get(pod["status"], pod["status"])
        return shown

    def _make(self, body: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        pod = {
            "id": f"pod{self._count:06}", "name": body["name"], "image": body["image"],
            "args": body.get("args", ""), "disk": body.get("disk", 50), "ports": [],
            "env": body.get("env", {}), "registry": body.get("registry"), "status": "PROVISIONING",
            "actions": ["terminate"], "mounts": body.get("mounts", {}),
            "cloud": body.get("cloud", "SECURE"), "dataCenterId": "US-KS-2", "cudaVersion": "12.8",
            "ssh": {"proxy": {"host": "ssh.runpod.io", "port": 22, "username": "u", "command": "ssh u"}, "direct": None},
            "template": None, "cost": 0.44, "locked": False, "globalNetworking": {"enabled": False},
            "runtime": {}, "createdAt": "2026-06-01T12:00:00Z", "startedAt": None,
        }  # fmt: skip
        if "gpu" in body:
            pod["gpu"] = {"id": body["gpu"]["id"], "count": body["gpu"].get("count", 1)}
        self.pods[pod["id"]] = pod
        return dict(pod)

    def _checked(self, operation: Any, status: int, value: Any) -> tuple[int, Any]:
        """An answer must be what the description says, or the tests would show nothing."""
        schema = resolve(operation["responses"][str(status)])["content"]["application/json"][
            "schema"
        ]
        assert not (errors := find_errors(schema, value)), errors
        return status, value


CATALOGUE = [
    {
        "id": "NVIDIA GeForce RTX 4090", "name": "RTX 4090", "pool": "ADA_24", "manufacturer": "NVIDIA",
        "memory": 24, "secure": True, "community": True, "availability": "HIGH",
        "price": {"secure": 0.44, "community": 0.31}, "maxCount": {"secure": 8, "community": 4},
        "dataCenters": [{"id": "US-KS-2", "name": "US Kansas 2", "availability": "HIGH"}],
    },
    {
        "id": "NVIDIA H200", "name": "H200", "pool": None, "manufacturer": "NVIDIA", "memory": 141,
        "secure": True, "community": False, "availability": "NONE",
        "price": {"secure": 3.99, "community": 3.99}, "maxCount": {"secure": 8, "community": 0},
    },
]  # fmt: skip


@contextmanager
def serve(fake: FakeRunpod) -> Iterator[str]:
    """Serve it on loopback; the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.command == "POST" and fake.hanging.is_set():
                while fake.hanging.is_set():
                    time.sleep(0.02)
                self.close_connection = True
                return
            headers = {"RateLimit": '"minute";r=59;t=12'}
            try:
                status, value = fake.act(self.command, self.path, self.headers, body)
                kind = "application/json"
            except Answer as answer:
                status, kind = answer.status, "application/problem+json"
                value = {"title": "Problem", "status": status, "detail": answer.detail}
                headers |= {name.replace("_", "-"): text for name, text in answer.headers.items()}
            if self.command != "GET" and fake.lose_answers:
                self.close_connection = True
                return
            data = b"" if value is None else json.dumps(value).encode()
            self.send_response(status)
            for name, text in {
                **headers,
                "Content-Type": kind,
                "Content-Length": str(len(data)),
            }.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = handle_one

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        fake.hanging.clear()
        server.shutdown()
        thread.join()
        server.server_close()


class RunpodRig:
    """The fake as a provider under test."""

    kind = "runpod"
    offer = Offer(name="4090", gpu_type="NVIDIA GeForce RTX 4090", gpus=2, cpu_slots=4)

    def __init__(self, folder: Path, fake: FakeRunpod, url: str) -> None:
        self.fake = fake
        key = folder / "runpod.key"
        key.write_text(KEY + "\n")
        self.config: dict[str, Any] = {"image": "holdfast:1", "api_key_file": str(key), "url": url}
        self.bad_config: dict[str, Any] = {"image": "no-room"}

    def env_of(self, machine: Machine) -> Mapping[str, str]:
        pod = self.fake.pods.get(machine.ref)
        return {} if pod is None else pod["env"]

    def count_starts(self, intent: str) -> int:
        pods = self.fake.pods.values()
        return len([pod for pod in pods if pod["env"].get("HOLDFAST_INTENT") == intent])

    @contextmanager
    def hang(self, order: CreateOrder) -> Iterator[None]:
        self.fake.hanging.set()
        yield
        self.fake.hanging.clear()

    def leftovers(self) -> list[str]:
        return [f"request broke the description: {error}" for error in self.fake.refused]
