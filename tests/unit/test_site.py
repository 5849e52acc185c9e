"""The documents as a site: its pages are all there once, what is made from the source is in step, and no
page asks another host."""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.site import agents, build, pages, wheel

from holdfast.core.causes import Cause
from tests.unit.sources import ROOT

DOCS = ROOT / "docs"


def walk(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from walk(part)


def test_each_page_is_in_the_navigation_once() -> None:
    counts = Counter(walk(build.list_nav()))
    assert [page for page, count in counts.items() if count > 1] == []
    there = {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")}
    assert there - counts.keys() == set(), "put it into the lists of docs/site/build.py"
    made = set(build.MADE) | {"index.md", "architecture.md"}
    codes = {f"reference/codes/{name}.md" for name in build.list_code_pages()}
    assert counts.keys() - there - made - codes == set()


def test_the_page_of_codes_is_in_step() -> None:
    assert (DOCS / "reference" / "codes.md").read_text() == pages.render_codes("`{}`"), (
        "python -m docs.site.pages > docs/reference/codes.md"
    )


def test_each_cause_says_what_to_do() -> None:
    texts = pages.read_cause_texts()
    assert set(texts) == set(map(str, Cause))
    assert [cause for cause, text in texts.items() if ". Mend: " not in text] == []


def test_codes_have_their_sentences() -> None:
    found = {code.code: code for code in pages.list_codes()}
    assert found["quota_exceeded"].status == 403
    assert found["quota_exceeded"].exit_code == 7
    assert "set TMPDIR" in found["no_socket_folder"].sentences[0]
    silent = [c.code for c in found.values() if not c.sentences and not c.about]
    assert len(silent) <= 2, silent  # their sentences are made elsewhere


def test_agents_read_every_command() -> None:
    skill = agents.render_skill()
    assert skill.startswith("---\nname: holdfast\n")
    assert "- `holdfast why`: " in skill
    assert "- `oom_killed`: charged to retries" in skill


def test_what_asks_another_host_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://example.org">text</a><script src="https://cdn.example/x.js"></script>'
        '<link rel="stylesheet" href="//fonts.example/css"><link rel="canonical" href="https://x">'
    )
    (tmp_path / "a.css").write_text(
        "@import 'https://fonts.example/b'; i { background: url(data:x) }"
    )
    assert [asked for _, asked in build.find_asks(tmp_path)] == [
        "https://fonts.example/b", "https://cdn.example/x.js", "//fonts.example/css",
    ]  # fmt: skip


def test_versions_are_listed_newest_first(tmp_path: Path) -> None:
    for version in ("0.2.0", "0.10.0", "0.9.1"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "index.html").touch()
    build.write_versions(tmp_path, "0.10.0")
    assert '["0.10.0", "0.9.1", "0.2.0"]' in (tmp_path / "versions.js").read_text()
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text()


def test_what_others_have_not_is_dated() -> None:
    """A claim that a tool lacks something has its date; what Holdfast has instead has a test or a page."""
    page = (DOCS / "reference" / "which-tool.md").read_text()
    (table,) = re.findall(r"^\| tool \| .*?\n((?:\|.*\n)+)", page, re.M)
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[1:]]
    assert len(rows) == 11
    for tool, better, lacks, answer in rows:
        assert re.search(r"\(20\d\d-\d\d\)", lacks), tool
        assert better, tool
        tests = re.findall(r"`(tests/[^`]*)`", answer)
        assert all((ROOT / test).exists() for test in tests), tool
        assert tests or "](" in answer or "cannot yet" in answer, tool


def test_the_wheel_holds_the_site_and_is_equal_each_time(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "reference").mkdir(parents=True)
    (site / "words.json").write_text("{}")
    (site / "reference" / "a.html").write_text("a")
    first = wheel.write_wheel(site, tmp_path)
    bytes_before = first.read_bytes()
    assert wheel.write_wheel(site, tmp_path).read_bytes() == bytes_before
    with zipfile.ZipFile(first) as packed:
        names = packed.namelist()
        record = next(name for name in names if name.endswith("/RECORD"))
        listed = [line.split(",")[0] for line in packed.read(record).decode().splitlines()]
    assert {"holdfast_docs/__init__.py", "holdfast_docs/site/words.json"} <= set(names)
    assert sorted(listed) == sorted(names)


def test_a_link_out_of_the_documents_leads_to_a_copy(tmp_path: Path) -> None:
    page = tmp_path / "guides" / "gangs.md"
    page.parent.mkdir()
    page.write_text("[a](../../examples/beat.c) [b](../../examples/slurm) [c](https://x.example)")
    text = build.bring_files(page, tmp_path)
    assert "](../files/examples/beat.c)" in text
    assert "](../files/examples/slurm/list.txt)" in text
    assert "policy.py" in (tmp_path / "files/examples/slurm/list.txt").read_text()
    assert (tmp_path / "files/examples/beat.c").read_text() == (
        ROOT / "examples/beat.c"
    ).read_text()
