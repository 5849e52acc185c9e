"""Resolve `--git URL@REF`: find the commit that a name of a repository means now."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from holdfast.core.bundles.code import CodeRef, check_url
from holdfast.errors import ValidationError

ONLY_NETWORK = (
    "-c", "protocol.allow=never", "-c", "protocol.https.allow=always", "-c", "protocol.ssh.allow=always",
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false",
)  # fmt: skip
"""Settings that keep git from hooks, and from helpers that a repository's address could name."""
_SECONDS = 60.0
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REF = re.compile(r"[^-\s\x00-\x1f\x7f~^:?*\[\\][^\s\x00-\x1f\x7f~^:?*\[\\]*")


def split_git(word: str) -> tuple[str, str]:
    """Return the address and the name in URL@REF; the name is HEAD where the word has none. Raises
    ValidationError."""
    url, at, ref = word.rpartition("@")
    for address, name in ((url, ref), (word, "HEAD")):
        whole = "://" not in address or address.count("/") > 2
        try:
            check_url(address)
        except ValidationError:
            continue
        if whole and (at or name == "HEAD"):
            if not _REF.fullmatch(name):
                raise ValidationError(f"--git {word}: {name!r} names no commit", field="git")
            return address, name
    check_url(word)
    raise ValidationError(f"--git {word}: write URL@REF", field="git")


def resolve_git(word: str) -> CodeRef:
    """Return the commit that URL@REF means now, as the repository answers. Raises
    ValidationError."""
    url, ref = split_git(word)
    if _COMMIT.fullmatch(ref):
        return CodeRef(url=url, ref=ref, commit=ref)
    names = (
        ["HEAD"]
        if ref == "HEAD"
        else [f"refs/heads/{ref}", f"refs/tags/{ref}", f"refs/tags/{ref}^{{}}"]
    )
    found = {name: commit for commit, name in _ask(url, names)}
    for name in reversed(names):
        if name in found:
            branch = ref if name.startswith("refs/heads/") else ""
            return CodeRef(url=url, ref=ref, commit=found[name], branch=branch)
    raise ValidationError(f"--git {word}: {url} has no branch and no tag {ref}", field="git")


def _ask(url: str, names: list[str]) -> list[tuple[str, str]]:
    environ = {**os.environ, "LC_ALL": "C"}
    if not sys.stdin.isatty():
        environ["GIT_TERMINAL_PROMPT"] = "0"
    try:
        done = subprocess.run(
            ("git", *ONLY_NETWORK, "ls-remote", "--", url, *names),
            env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValidationError(f"--git {url}: git cannot ask it: {error}", field="git") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        why = lines[-1] if lines else f"git ended with {done.returncode}"
        raise ValidationError(f"--git {url}: git cannot ask it: {why}", field="git")
    rows = (line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line)
    return [(commit, name) for commit, name in rows if _COMMIT.fullmatch(commit)]
