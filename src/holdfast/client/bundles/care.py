"""What is asked before a folder is sent: secrets in it, a home folder, and more than a bound. Pure."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable

from holdfast.core.bundles.manifest import show_path

MAX_BYTES = 1 << 30
_SECRET_NAMES = (
    ".env", ".env.*", "*.pem", "id_*", ".netrc", ".pgpass", ".pypirc", "*.p12", "*.pfx", "*.kdbx",
    "application_default_credentials.json",
)  # fmt: skip
_NO_SECRETS = ("*.pub", ".env.example", ".env.sample", ".env.template", "id_*.py")
_SECRET_PATHS = (
    ".aws/credentials", ".aws/config", ".azure/*", ".config/gcloud/*", ".kube/config", ".docker/config.json", ".ssh/*",
    ".oci/config", ".config/gh/hosts.yml", ".huggingface/token", ".cache/huggingface/token",
)  # fmt: skip
_SHOWN = 5


def is_secret(path: bytes) -> bool:
    """Return whether a path looks as if it held a secret: keys, `.env`, credentials of clouds."""
    whole = os.fsdecode(path)
    name = whole.rpartition("/")[2]
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in _NO_SECRETS):
        return False
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in _SECRET_NAMES):
        return True
    return any(fnmatch.fnmatchcase(f"/{whole}", f"*/{pattern}") for pattern in _SECRET_PATHS)


def find_worries(root: bytes, home: str, paths: Iterable[bytes]) -> list[str]:
    """Return a sentence for each thing that a person should know before a folder is sent."""
    worries = []
    above = os.path.realpath(os.fsencode(home))
    real = os.path.realpath(root)
    if above == real or above.startswith(real.rstrip(b"/") + b"/"):
        worries.append(f"{os.fsdecode(root)} is the home folder, or has it inside")
    secrets = [path for path in paths if is_secret(path)]
    if secrets:
        shown = ", ".join(map(show_path, secrets[:_SHOWN])) + (
            ", …" if len(secrets) > _SHOWN else ""
        )
        worries.append(f"{len(secrets)} of its files may hold secrets: {shown}")
    return worries


def say_too_large(size: int, limit: int, largest: Iterable[tuple[bytes, int]]) -> str:
    """Return what to do about a folder over the bound, with its largest folders."""
    names = ", ".join(f"{show_path(path)} {say_size(each)}" for path, each in largest)
    return (
        f"the folder has {say_size(size)}, and {say_size(limit)} go unless more is asked for. The largest: "
        f"{names}. Leave some out in .holdfastignore (`holdfast code --list` shows what goes), or send "
        "all of it with --workdir-max SIZE"
    )


def say_size(size: float) -> str:
    """Return a number of bytes as people say it."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.0f}"
