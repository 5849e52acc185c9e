"""Pack into one archive what people need for a report of a fault, without secrets (DOCTOR-1)."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from holdfast.cli.doctor.places import Places
from holdfast.client.contexts.file import find_contexts_file, read_contexts
from holdfast.client.locate import ControllerPlace
from holdfast.client.synchronous import Client
from holdfast.core.doctor.findings import DoctorFinding
from holdfast.core.doctor.redaction import Redaction, find_passwords, find_secrets
from holdfast.errors import Conflict, HoldfastError, ValidationError
from holdfast.process.files import write_atomic
from holdfast.version import DISTRIBUTION, VERSION

TOP = "holdfast-report"
LOG_BYTES, LOG_LINES = 512 << 10, 2000
EVENTS = 200
_SECONDS = 5.0
_LIBRARIES = ("torch", "cupy", "numpy", "uv")
_ABOUT = """\
A report of `holdfast doctor --bundle`, Holdfast {version}, made {at}.

What is in it:
{contents}
What is not: values of environment variables, tokens, keys and passwords, the output of jobs, code
and data of users. Secrets were replaced by asterisks: those that this machine knows, and all that
looks like one. Look through it before you send it, because a secret of another shape is not known.
{absent}"""


class Report:
    """An archive in memory, for a report of a fault. Secrets are removed from each text in it."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self.files: dict[str, bytes] = {}
        self.about: dict[str, str] = {}
        self.absent: dict[str, str] = {}

    def add(self, name: str, about: str, text: str) -> None:
        """Add a text to the archive. about: a line about the text, for the table of contents."""
        name = self._redaction.take_out(name)
        self.files[name] = self._redaction.take_out(text).encode(errors="replace")
        self.about[name] = about

    def add_json(self, name: str, about: str, value: Any) -> None:
        """Add a value to the archive, as JSON."""
        self.add(name, about, json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False))

    def try_json(self, name: str, about: str, read: Callable[[], Any]) -> None:
        """Add the value that a function returns, or the reason why it returned none."""
        try:
            self.add_json(name, about, read())
        except (HoldfastError, OSError, ValueError) as error:
            self.absent[name] = self._redaction.take_out(str(error))

    def write_contents(self) -> str:
        """Return the table of contents: the texts in the archive, and those that are missing."""
        width = max(map(len, self.files), default=0)
        lines = "".join(
            f"  {name.ljust(width)}  {about}\n" for name, about in sorted(self.about.items())
        )
        absent = "".join(f"  {name}: {why}\n" for name, why in sorted(self.absent.items()))
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        head = f"\nWhat could not be read:\n{absent}" if absent else ""
        page = _ABOUT.format(version=VERSION, at=at, contents=lines, absent=head)
        return self._redaction.take_out(page)

    def pack(self) -> bytes:
        """Return the bytes of the archive."""
        files = {"CONTENTS.txt": self.write_contents().encode(), **self.files}
        out, now = io.BytesIO(), time.time()
        with tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, data in files.items():
                entry = tarfile.TarInfo(f"{TOP}/{name}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(now)
                archive.addfile(entry, io.BytesIO(data))
        return out.getvalue()


def check_target(path: Path) -> Path:
    """Return the path of the archive to write. Raises Conflict where there is one."""
    path = path.expanduser().absolute()
    if path.exists():
        raise Conflict(f"{path} is there already; name another file", code="file_exists")
    if not path.parent.is_dir():
        raise ValidationError(f"there is no folder {path.parent}", field="bundle")
    return path


def make_report(
    findings: Iterable[DoctorFinding],
    places: Places,
    place: ControllerPlace | None,
    dsn: str | None,
) -> Report:
    """Gather the parts of a report of a fault into an archive."""
    report = Report(Redaction(gather_secrets(places, place, dsn)))
    report.add_json("findings.json", "what the doctor found", list(findings))
    report.add_json("versions.json", "versions of Holdfast and its libraries", _read_versions())
    names = "".join(f"{name}\n" for name in sorted(os.environ))
    report.add("environment.txt", "names of environment variables, without values", names)
    _add_configuration(report, places)
    _add_logs(report, places)
    if place is not None:
        _add_server(report, place)
    return report


def write_report(report: Report, path: Path) -> int:
    """Write the archive (0600) and return its size. Raises ValidationError where that fails."""
    data = report.pack()
    try:
        write_atomic(path, data)
    except OSError as error:
        raise ValidationError(f"{path} cannot be written: {error.strerror}") from error
    return len(data)


def gather_secrets(places: Places, place: ControllerPlace | None, dsn: str | None) -> set[str]:
    """Return the secrets that this machine knows, so that they can be removed from texts."""
    found = find_secrets(os.environ) | find_passwords(dsn or "")
    if dsn:
        found.add(dsn)
    if place is not None and place.token:
        found.add(place.token)
    try:
        contexts = read_contexts(os.environ).contexts.values()
    except HoldfastError:
        contexts = {}.values()
    for context in contexts:
        found |= {context.token or ""}
        found |= {password for url in context.urls for password in find_passwords(url)}
    files = [os.environ.get("HOLDFAST_TOKEN_FILE", "")]
    if places.data is not None:
        secret = ("token", "join", "postgres/data/holdfast.password")
        files += [str(places.data / name) for name in secret]
    for folder in (places.state, places.data / "host" if places.data else None):
        if folder is not None:
            files.append(str(folder / "join"))
            found |= _read_key(folder / "host.json")
    for path in filter(None, files):
        try:
            found.add(Path(path).read_text(errors="replace").strip())
        except OSError:
            continue
    return found - {""}


def _read_key(path: Path) -> set[str]:
    try:
        value = json.loads(path.read_text())
        return {str(value[name]) for name in ("host_key", "token_hash") if value.get(name)}
    except (OSError, ValueError, TypeError, AttributeError):
        return set()


def _read_versions() -> dict[str, str]:
    found = {"holdfast": VERSION}
    needed = metadata.requires(DISTRIBUTION) or []
    names = {line.split(";")[0].split("[")[0].strip(" ()") for line in needed}
    for name in sorted({*map(_cut_name, names), *_LIBRARIES}):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cut_name(requirement: str) -> str:
    end = next((i for i, c in enumerate(requirement) if not (c.isalnum() or c in "._-")), None)
    return requirement[:end]


def _add_configuration(report: Report, places: Places) -> None:
    if find_contexts_file(os.environ) is not None:
        report.try_json(
            "config/contexts.json", "the servers that were logged in to, without tokens",
            _read_context_rows,
        )  # fmt: skip
    if places.state is not None:
        path = places.state / "agent.json"
        report.try_json(
            "config/agent.json", "the agent's configuration", lambda: json.loads(path.read_text())
        )
    if places.data is not None:
        data = places.data
        report.add_json("up/state.json", "the state of the `up` here", _read_up(data))


def _read_context_rows() -> dict[str, Any]:
    kept = read_contexts(os.environ)
    rows = {
        name: {"urls": one.urls, "has_token": one.token is not None, "ca_file": one.ca_file}
        for name, one in kept.contexts.items()
    }
    return {"current": kept.current, "contexts": rows}


def _read_up(data: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"folder": str(data)}
    for name in ("url", "parts.json", "postgres/runtime.json"):
        try:
            text = (data / name).read_text()
            found[name] = json.loads(text) if name.endswith(".json") else text.strip()
        except (OSError, ValueError):
            found[name] = None
    return found


def _add_logs(report: Report, places: Places) -> None:
    folders = {"up": places.data / "log"} if places.data else {}
    if places.data:
        folders["postgres"] = places.data / "postgres"
    if places.state:
        folders["agent"] = places.state
    for where, folder in folders.items():
        for path in sorted(folder.glob("*.log")):
            name = f"logs/{where}-{path.name}"
            try:
                report.add(name, f"the last lines of {path}", read_last_lines(path))
            except OSError as error:
                report.absent[name] = error.strerror or str(error)


def read_last_lines(path: Path) -> str:
    """Return the last lines of a log, only whole lines, within `LOG_BYTES` and `LOG_LINES`."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - LOG_BYTES)
        file.seek(start)
        data = file.read(LOG_BYTES)
    if start:
        data = data.partition(b"\n")[2]
    lines = data.decode(errors="replace").splitlines(keepends=True)
    return "".join(lines[-LOG_LINES:])


def _add_server(report: Report, place: ControllerPlace) -> None:
    with Client(
        place.url, place.token, retry_seconds=0.0, timeout_seconds=_SECONDS, ca_file=place.ca_file
    ) as client:
        reads: tuple[tuple[str, str, Callable[[], Any]], ...] = (
            ("server", "the controller's version and clock", client.server),
            ("hosts", "the hosts", lambda: list(client.hosts())),
            ("settings", "the settings in force", lambda: list(client.config())),
            ("events", f"the last {EVENTS} events", lambda: list(client.events(tail=EVENTS))),
        )
        for name, about, read in reads:
            report.try_json(f"server/{name}.json", about, read)
            if "cannot be reached" in report.absent.get(f"server/{name}.json", ""):
                return
