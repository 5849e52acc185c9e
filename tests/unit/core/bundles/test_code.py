"""Which repositories hosts fetch from, and that a job has one kind of code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.core.bundles.code import CodeRef, check_code, check_url
from holdfast.core.spec import JobSpec, check_spec
from holdfast.errors import ValidationError
from holdfast.work.making.inputs import find_files

COMMIT = "a" * 40


@pytest.mark.parametrize(
    "url", ["https://example.org/a/b.git", "ssh://git@example.org/a/b", "git@example.org:a/b.git"]
)
def test_https_and_ssh_are_fetched(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc", "/etc", "git://example.org/a", "http://example.org/a", "ext::sh -c true", "-uhttps://x/y",
        "--upload-pack=touch", "https://x y", "fd::17", "a@b:-oProxyCommand=x", "ssh://-oProxyCommand=x/y", "",
        "https://example.org/a\nb",
    ],
)  # fmt: skip
def test_any_other_address_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="no repository that hosts fetch"):
        check_url(url)


def test_code_is_a_bundle_or_a_commit() -> None:
    check_code(CodeRef(digest="0" * 64))
    check_code(CodeRef(url="https://example.org/a", commit=COMMIT))
    for code in (
        CodeRef(),
        CodeRef(digest="0" * 64, url="https://example.org/a", commit=COMMIT),
        CodeRef(url="https://example.org/a"),
    ):
        with pytest.raises(ValidationError, match="code"):
            check_code(code)


def test_a_job_with_code_starts_where_its_code_is() -> None:
    code = CodeRef(digest="0" * 64)
    check_spec(JobSpec(argv=("x",), code=code))
    with pytest.raises(ValidationError, match="leave cwd out"):
        check_spec(JobSpec(argv=("x",), code=code, cwd="/tmp"))


def test_setup_goes_before_a_command_and_reads_files_below_the_folder() -> None:
    check_spec(JobSpec(argv=("x",), setup="pip install x", setup_files=("a/*.txt",)))
    check_spec(JobSpec(argv=("x",), setup="pip install x", image="python"))
    for wrong in (
        JobSpec(argv=("x",), setup=" "),
        JobSpec(setup="x", image="python"),
        JobSpec(argv=("x",), setup_files=("a",)),
        JobSpec(argv=("x",), setup="x", setup_files=("../a",)),
        JobSpec(argv=("x",), setup="x", setup_files=("/etc/passwd",)),
    ):
        with pytest.raises(ValidationError, match=r"setup|environment|pattern"):
            check_spec(wrong)


@pytest.mark.parametrize("pattern", ["", "./", ".//.", "/", "a/..", "**a/x", "a/b**"])
def test_a_pattern_that_names_no_files_of_the_folder_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match=f"^'{re.escape(pattern)}' (is|has) "):
        check_spec(JobSpec(argv=("x",), setup="x", setup_files=(pattern,)))


@pytest.mark.parametrize(
    "pattern", ["*.txt", "**", "**.txt", "./*.txt", "a/**/[b", "**/*.in", "a/"]
)
def test_files_are_found_by_every_pattern_that_is_accepted(tmp_path: Path, pattern: str) -> None:
    """A pattern that the search itself refuses would end a job with a traceback."""
    check_spec(JobSpec(argv=("x",), setup="x", setup_files=(pattern,)))
    (tmp_path / "a.txt").touch()
    assert find_files(tmp_path, [pattern]) in ([], [tmp_path / "a.txt"])
