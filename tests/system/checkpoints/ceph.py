"""A real S3: Ceph's object gateway over a monitor and an object store of its own, on loopback and
in memory.

Three programs of Debian's packages (`tests/system/checkpoints/install.sh`), each of which dies with
the tests. What is theirs lies in one folder. Signatures are checked, uploads have parts, listings
have pages: none of it is ours.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from tests.waits import free_port, run_patiently, wait_until

PROGRAMS = (
    "radosgw",
    "radosgw-admin",
    "ceph-mon",
    "ceph-osd",
    "ceph",
    "ceph-authtool",
    "monmaptool",
    "setpriv",
)
KEY, SECRET, REGION = "holdfast-test", "holdfast-test-secret", "default"
SECONDS = 90.0

_CONF = """
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{mon_port}]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd crush chooseleaf type = 0
mon allow pool size one = true
rgw cache enabled = false
admin socket =
pid file =
log file = {folder}/$name.log
keyring = {folder}/keyring
mon data = {folder}/mon
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 2147483648
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port}
"""


def missing() -> list[str]:
    """Programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


class Gateway:
    """The gateway and what it stands on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._stack = ExitStack()
        self._gateway: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead to it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    # ---- life

    def start(self) -> None:
        """Make a cluster of one monitor and one object store, a user, and the gateway."""
        fsid, mon_port = uuid.uuid4(), free_port()
        for name in ("rgw", "osd"):
            (self.folder / name).mkdir()
        conf = _CONF.format(fsid=fsid, mon_port=mon_port, folder=self.folder, port=self.port)
        (self.folder / "ceph.conf").write_text(conf)
        everything = ["--cap", "mon", "allow *", "--cap", "osd", "allow *"]
        for n, (name, caps) in enumerate(
            [
                ("mon.", everything[:3]),
                ("client.admin", everything),
                ("osd.0", ["--cap", "mon", "allow profile osd", "--cap", "osd", "allow *"]),
            ]
        ):
            words = [
                "ceph-authtool",
                *(["--create-keyring"] if n == 0 else []),
                "keyring",
                "--gen-key",
                "-n",
                name,
            ]
            self._run(*words, *caps, conf=False)
        address = f"[v2:127.0.0.1:{mon_port}]"
        self._run(
            "monmaptool",
            "--create",
            "--fsid",
            str(fsid),
            "--addv",
            "a",
            address,
            "monmap",
            conf=False,
        )
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", "monmap", "--keyring", "keyring")
        self._serve("ceph-mon", "-i", "a")
        store = str(uuid.uuid4())
        self._run("ceph", "--connect-timeout", "60", "osd", "new", store)
        self._run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", store)
        self._serve("ceph-osd", "-i", "0")
        self._run(
            "radosgw-admin",
            "user",
            "create",
            "--uid",
            "team",
            "--display-name",
            "team",
            "--access-key",
            KEY,
            "--secret-key",
            SECRET,
        )
        self.start_gateway()

    def start_gateway(self) -> None:
        """Start the part that speaks S3, and wait until it does."""
        self._gateway = self._serve("radosgw", "-n", "client.admin")
        wait_until(self._answers, SECONDS, what="the gateway to answer")

    @property
    def gateway_lives(self) -> bool:
        """Whether the part that speaks S3 is there."""
        return self._gateway is not None and self._gateway.poll() is None

    def kill_gateway(self) -> None:
        """As a crash does."""
        assert self._gateway is not None
        self._gateway.kill()
        self._gateway.wait(20)

    def freeze_gateway(self, frozen: bool) -> None:
        """Have it take connections and answer none."""
        assert self._gateway is not None
        self._gateway.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)

    def stop(self) -> None:
        """End all of it."""
        self._stack.close()

    def _run(self, *words: str, conf: bool = True) -> None:
        more = ["-c", "ceph.conf"] if conf else []
        done = run_patiently(
            [words[0], *more, *words[1:]], cwd=self.folder, capture_output=True, seconds=SECONDS
        )
        assert done.returncode == 0, f"{words}: {done.stdout.decode()} {done.stderr.decode()}"

    def _serve(self, *words: str) -> subprocess.Popen[bytes]:
        """A program that dies with the thread that calls this; call it from the main one."""
        with (self.folder / f"{words[0]}.out").open("ab") as out:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", words[0], "-c", "ceph.conf", *words[1:], "-f"],
                cwd=self.folder,
                stdout=out,
                stderr=out,
            )
        self._stack.callback(process.wait, 20)
        self._stack.callback(process.kill)
        return process

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.endpoint, timeout=5):
                return True
        except (OSError, urllib.error.URLError):
            return False

    # ---- what an administrator does

    def make_bucket(self) -> str:
        """A new bucket; its name."""
        name = f"b{uuid.uuid4().hex[:12]}"
        self.call("PUT", f"/{name}")
        return name

    def uploads(self, bucket: str) -> list[str]:
        """Names of multipart uploads that are neither completed nor aborted."""
        return re.findall(r"<Key>(.*?)</Key>", self.call("GET", f"/{bucket}", "uploads=").decode())

    def call(self, method: str, path: str, query: str = "") -> bytes:
        """One signed call (AWS Signature Version 4) without a body."""
        at = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        digest, names = hashlib.sha256(b"").hexdigest(), "host;x-amz-content-sha256;x-amz-date"
        headers = f"host:127.0.0.1:{self.port}\nx-amz-content-sha256:{digest}\nx-amz-date:{at}\n"
        canonical = f"{method}\n{quote(path)}\n{query}\n{headers}\n{names}\n{digest}"
        scope = f"{at[:8]}/{REGION}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = f"AWS4{SECRET}".encode()
        for word in scope.split("/"):
            key = hmac.new(key, word.encode(), hashlib.sha256).digest()
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        words: Mapping[str, str] = {
            "x-amz-content-sha256": digest,
            "x-amz-date": at,
            "Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders={names}, "
            f"Signature={signature}",
        }
        url = self.endpoint + path + (f"?{query}" if query else "")
        request = urllib.request.Request(url, method=method, headers=dict(words))
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            found: bytes = answer.read()
            return found


def start_gateway(folder: Path) -> Gateway:
    """Make and start one; if a part does not come up, the others are ended."""
    gateway = Gateway(folder)
    try:
        gateway.start()
    except BaseException:
        gateway.stop()
        raise
    return gateway


def wanted() -> bool:
    """Whether a test that is skipped for want of the programs is a failure."""
    return os.environ.get("HOLDFAST_TESTS_NEED_S3") == "1"
