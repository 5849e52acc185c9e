"""`holdfast docs`: the page of a word, and what it says without its package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.extras import find_docs
from holdfast.cli.watch.docs import docs
from holdfast.errors import HoldfastError, NotFound


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package, with a page for a cause."""
    folder = tmp_path / "holdfast_docs" / "site"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    words = {"index": "index.html", "oom_killed": "reference/codes/oom_killed.html"}
    (folder / "words.json").write_text(json.dumps(words))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    return folder


def test_a_word_leads_to_its_page(site: Path) -> None:
    assert find_docs() == site
    done = CliRunner().invoke(docs, ["oom_killed"])
    assert done.stdout == f"file://{site}/reference/codes/oom_killed.html\n"
    assert CliRunner().invoke(docs, []).stdout.endswith("/index.html\n")


def test_a_word_that_names_no_page_is_told_what_is_close(site: Path) -> None:
    done = CliRunner().invoke(docs, ["oom_kill"])
    assert isinstance(done.exception, NotFound)
    assert done.exception.code == "no_page"
    assert "close to it: oom_killed" in done.exception.message


def test_without_the_package_it_says_how_to_get_it() -> None:
    if find_docs() is not None:
        pytest.skip("the package is installed here")
    done = CliRunner().invoke(docs, [])
    assert isinstance(done.exception, HoldfastError)
    assert done.exception.code == "missing_extra"
    assert "make docs-wheel" in done.exception.message
