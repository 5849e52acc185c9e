"""The source of a job's code: a bundle, or a commit of a git repository. Pure."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.errors import ValidationError

_Commit = Annotated[str, Meta(max_length=64, pattern=r"^([0-9a-f]{40}|[0-9a-f]{64}|)$(?!\n)")]
_Words = Annotated[str, Meta(max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)")]
_URL = re.compile(
    r"(?:https://|ssh://)[^\s\x00-\x1f\x7f]+|[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:[^\s:-][^\s]*"
)


_OLD = re.compile(
    r"(?m:^holdfast: (the environment [0-9a-f]{24}-\d{1,9} was made \d{1,6} days ago)$)"
)


def find_old_environment(log: str) -> str | None:
    """Return what `work.making` says at the begin of a log of an environment that was made long
    before; None where it says nothing."""
    found = _OLD.search(log)
    return None if found is None else found[1]


class CodeRef(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The code that every attempt of a job gets, the same for all of them.

    digest: the bundle of the folder that was sent. url: else the git repository that hosts fetch it
    from. commit, branch: the commit and branch of the folder's checkout, or of the repository;
    empty where the folder is no checkout. dirty: the folder had changes that were not committed.
    ref: the name that the commit was found by at submission.
    """

    digest: Annotated[str, Meta(max_length=64, pattern=r"^([0-9a-f]{64}|)$(?!\n)")] = ""
    url: Annotated[str, Meta(max_length=2048)] = ""
    ref: _Words = ""
    commit: _Commit = ""
    branch: _Words = ""
    dirty: bool = False

    @property
    def name(self) -> str:
        """Return a short name for the code, for people to compare: the beginning of a bundle's
        digest, or a repository and the beginning of a commit."""
        if self.url:
            return f"{self.url}@{self.commit[:12]}"
        return self.digest[:12]

    @property
    def bare(self) -> CodeRef:
        """Return the code without the words about its checkout: the same for the same bytes."""
        if self.url:
            return CodeRef(url=self.url, commit=self.commit)
        return CodeRef(digest=self.digest)

    def describe(self) -> str:
        """Return a line about the code: its name, and the checkout that it came from."""
        words = [self.name]
        if self.commit and not self.url:
            words.append(f"of commit {self.commit[:12]}")
        if self.branch:
            words.append(f"on {self.branch}")
        if self.dirty:
            words.append("with changes that were not committed")
        return " ".join(words)


def check_code(code: CodeRef) -> None:
    """Raise ValidationError where code is neither a bundle nor a commit of a repository."""
    if bool(code.digest) == bool(code.url):
        raise ValidationError(
            "code is either a bundle (`digest`) or a repository (`url`)", field="code"
        )
    if code.url:
        check_url(code.url)
        if not code.commit:
            raise ValidationError(
                f"code of {code.url} names no commit; the client finds it when it submits",
                field="code.commit",
            )


def check_url(url: str) -> None:
    """Raise ValidationError for an address that hosts do not fetch from: only https and ssh are
    allowed, and no word that a program could take for an option."""
    if not _URL.fullmatch(url) or url.startswith("-") or "://-" in url:
        raise ValidationError(
            f"{url[:200]!r} is no repository that hosts fetch; write https://… or ssh://…",
            field="code.url",
        )
