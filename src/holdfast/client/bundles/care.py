"""The questions that are asked before a folder is sent: about secrets in it, a home folder, and a
size over the bound. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from holdfast.core.bundles.manifest import show_path
from holdfast.core.words import say_bytes

MAX_BYTES = 1 << 30
TELL_BYTES = 100 << 20
"""From this size on, the folders with the most bytes are named before these are read and sent."""
_SECRET_NAMES = (
    ".env", ".env.*", "*.pem", "id_*", ".netrc", ".pgpass", ".pypirc", "*.p12", "*.pfx", "*.kdbx",
    "application_default_credentials.json", ".git-credentials", ".npmrc", ".yarnrc.yml", ".htpasswd", ".my.cnf",
    ".s3cfg", ".boto", "*.key", "*.ppk", "*.jks", "*.keystore", "token", ".token", "*.token", "*_token", "*-token",
    "token.txt", "*_token.txt", "token.json", ".vault-token", "kaggle.json", "credentials", "credentials.json",
    "secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml", "service-account*.json", "service_account*.json",
)  # fmt: skip
_NO_SECRETS = ("*.pub", ".env.example", ".env.sample", ".env.template", "id_*.py")
_SECRET_PATHS = (
    ".aws/credentials", ".aws/config", ".azure/*", ".config/gcloud/*", ".kube/config", ".docker/config.json", ".ssh/*",
    ".oci/config", ".config/gh/hosts.yml", ".huggingface/token", ".cache/huggingface/token",
)  # fmt: skip
_SHOWN = 5


def _compile(patterns: Iterable[str], any_bytes: str) -> re.Pattern[bytes]:
    """Return one expression for all of the patterns, because a folder has many paths."""
    words = (re.escape(pattern).replace(r"\*", any_bytes) for pattern in patterns)
    return re.compile(rf"(?s)(?:^|/)(?:{'|'.join(words)})\Z".encode())


_NAMED = _compile(_SECRET_NAMES, "[^/]*")
_HARMLESS = _compile(_NO_SECRETS, "[^/]*")
_PLACED = _compile(_SECRET_PATHS, ".*")


def is_secret(path: bytes) -> bool:
    """Return whether a path looks as if it held a secret: keys, `.env`, credentials of clouds."""
    found = _NAMED.search(path) or _PLACED.search(path)
    return found is not None and _HARMLESS.search(path) is None


def find_home(folder: str, home: str) -> list[str]:
    """Return a sentence where a folder is the home folder or has it inside, which a person should
    know before anything walks through it."""
    above, real = os.path.realpath(home), os.path.realpath(os.path.expanduser(folder))
    if above == real or above.startswith(real.rstrip("/") + "/"):
        return [f"{real} is the home folder, or has it inside"]
    return []


def find_secrets(paths: Iterable[bytes], *, whole: bool = False) -> list[str]:
    """Return a sentence on the files that may hold secrets, if there are any. whole: name all of
    them."""
    secrets = [path for path in paths if is_secret(path)]
    if not secrets:
        return []
    shown = secrets if whole else secrets[:_SHOWN]
    more = "" if len(shown) == len(secrets) else ", … (`holdfast code` names all)"
    said = ", ".join(map(show_path, shown))
    return [f"{len(secrets)} of its files may hold secrets: {said}{more}"]


def say_large(size: int, largest: Iterable[tuple[bytes, int]]) -> str:
    """Return a sentence on the many bytes that are about to be read and sent, with the folders that
    have most of them."""
    names = ", ".join(f"{show_path(path)} {say_bytes(each)}" for path, each in largest)
    return (
        f"{say_bytes(size)} are new or changed and are about to be sent, the most in {names}; "
        ".holdfastignore leaves out more"
    )


def say_too_large(size: int, limit: int, largest: Iterable[tuple[bytes, int]]) -> str:
    """Return a sentence on what to do about a folder over the bound, with its largest folders."""
    names = ", ".join(f"{show_path(path)} {say_bytes(each)}" for path, each in largest)
    return (
        f"the folder has {say_bytes(size)}, and {say_bytes(limit)} go unless more is asked for. The largest: "
        f"{names}. Leave some out in .holdfastignore (`holdfast code --list` shows what goes), or send "
        "all of it with --workdir-max SIZE"
    )
