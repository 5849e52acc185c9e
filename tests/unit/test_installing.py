"""The lines that install Holdfast name what can be had: a clone until the first upload, then the
distribution, never the other project that has the name `holdfast`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from release.lines import PAGES, ROOT, write_lines

from holdfast import version
from holdfast.version import DISTRIBUTION, PUBLISHED, VERSION, name_install

_BARE = re.compile(r"(?:pip install|uv tool install|uvx)[^`\n]*[ '\"=]holdfast(?:\[|['\"`\s]|$)")


def test_name_and_version_stand_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["name"] == DISTRIBUTION
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/holdfast/version.py"
    lock = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    (own,) = [one for one in lock if one["source"] == {"editable": "."}]
    assert (own["name"], "version" in own) == (DISTRIBUTION, False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_installs_by_a_name_that_is_not_ours(page: Path) -> None:
    text = page.read_text()
    assert not _BARE.findall(text)
    assert write_lines(text, published=PUBLISHED) == text, "python -m release.lines writes it anew"


def test_the_lines_of_pages_after_an_upload() -> None:
    page = "pip install '.[server,forensics]'    # in a clone of this repository\n`pip install '.[s3]'` in a clone, or `pip install .` there"
    told = f"pip install '{DISTRIBUTION}[server,forensics]'\n`pip install '{DISTRIBUTION}[s3]'` or `pip install {DISTRIBUTION}` there"
    assert write_lines(page, published=True) == told


def test_the_sentences_of_errors_name_what_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_install() == "pip install . in a clone of Holdfast"
    assert name_install("server", "s3") == "pip install '.[server,s3]' in a clone of Holdfast"
    monkeypatch.setattr(version, "PUBLISHED", True)
    assert name_install("server") == f"pip install '{DISTRIBUTION}[server]'"
    assert name_install(version=VERSION) == f"pip install '{DISTRIBUTION}=={VERSION}'"


def test_other_lines_of_installing_are_found() -> None:
    assert _BARE.search("run `pip install 'holdfast[s3]'` there")
    assert _BARE.search("RUN pip install holdfast\n")
    assert _BARE.search("uvx --from holdfast holdfast up")
    assert not _BARE.search("pip install 'holdfast-gpu[s3]'")
