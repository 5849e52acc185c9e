"""Build the site of the documents: `make docs`, or `python -m docs.site.build FOLDER`.

The pages are those of docs/ as they stand, a page for each cause and error code, the references from
docstrings, and the landing page. FOLDER/VERSION is the site of this version; beside it stand
`versions.js`, which the selector on each page reads, and a page that leads to the newest. What an
earlier build left of other versions stays. A page that asks another host for anything fails the build.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.site import agents, pages

from holdfast.core.causes import Cause
from holdfast.version import VERSION

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOOK = Path(__file__).parent / "look"
TUTORIAL = ["tour", "retries", "from-one-box-to-a-cluster"]
HOW_TO = {
    "Run work": ["beats", "checkpoints", "code", "containers", "outputs", "python", "libraries", "gangs",
                 "stragglers", "arrays", "schedules", "preemption"],
    "Calls and workflows": ["functions", "models", "workflows"],
    "See and be told": ["classification", "dashboard", "watching", "when", "logs", "inside", "report", "notify",
                        "webhooks", "monitoring"],
    "Operate": ["where-am-i", "hosts", "hosts-as-services", "dead-hosts", "database", "projects"],
    "Grow": ["pools", "providers-kubernetes", "providers-slurm", "providers-ssh", "providers-runpod",
             "providers-local", "providers-command"],
    "Decide yourself": ["supervisor", "slurm"],
    "Come from another tool": ["coming-from-a-scheduler", "coming-from"],
}  # fmt: skip
REFERENCE = ["cli", "rest", "graphql", "graphql-schema", "supervisor", "states", "metrics", "xid", "stops", "ledger",
             "beat", "equivalents", "first-hour", "releasing"]  # fmt: skip
EXPLANATION = ["which-tool", "causes", "tried", "untried", "transcripts", "benchmarks", "benchmarks-history",
               "measuring", "costs"]  # fmt: skip
SHIM = "https://unpkg.com/iframe-worker/shim"
"""What the builder's pages load from another host, so that search works in a folder; a copy is ours."""
MADE = ("reference/codes.md", "reference/sdk.md", "reference/supervisor-names.md")
FILES = re.compile(r"\]\((?!https?://|#|mailto:)([^)\s]+)\)")
# What makes a browser ask a host; a plain link of the text asks none.
ASKS = re.compile(
    r"<(?:script|img|iframe|source|video)\b[^>]*\bsrc=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|dns-prefetch|icon))[^>]*\bhref=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|(?:@import\s+|url\()[\"']?((?:https?:)?//[^\"')\s]+)"
)


def main() -> int:
    """Build the site, and return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", default=VERSION)
    parser.add_argument("--builder", default="zensical", help="the program that builds")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "pages"
        sections = prepare(source)
        target = given.folder.resolve() / given.version
        shutil.rmtree(target, ignore_errors=True)
        config = Path(folder) / "mkdocs.yml"
        config.write_text(json.dumps(configure(given.version, list_nav()), indent=1))
        if run_builder(given.builder, config) != 0:
            return 1
        shutil.copytree(Path(folder) / "site", target)
        finish(source, target, sections)
    write_versions(given.folder.resolve(), given.version)
    asked = list(find_asks(target))
    for path, host in asked:
        print(f"docs: {path} asks another host: {host}", file=sys.stderr)
    print(f"docs: {sum(1 for _ in target.rglob('*.html'))} pages in {target}")
    return 1 if asked else 0


# ---- pages


def list_nav() -> list[Any]:
    """Return the navigation: tutorial, how-to, reference, explanation."""
    codes = [f"reference/codes/{name}.md" for name in list_code_pages()]
    return [
        {"Holdfast": ["index.md"]},
        {"Tutorial": [f"guides/{name}.md" for name in TUTORIAL]},
        {"How-to": [{title: [f"guides/{n}.md" for n in names]} for title, names in HOW_TO.items()]},
        {"Reference": [*(f"reference/{name}.md" for name in REFERENCE), *MADE, {"Each cause and code": codes}]},
        {"Explanation": [
            *(f"reference/{name}.md" for name in EXPLANATION),
            {"How it is built": ["architecture.md"]},
            {"Decisions": sorted(f"decisions/{p.name}" for p in (DOCS / "decisions").glob("*.md"))},
        ]},
    ]  # fmt: skip


def list_code_pages() -> list[str]:
    """Return the names of the pages of causes and codes; one that is both has one page."""
    return sorted({*map(str, Cause), *(code.code for code in pages.list_codes())})


def prepare(source: Path) -> dict[str, list[str]]:
    """Write every page into `source`. Return the pages by section, for `llms.txt`."""
    for folder in ("guides", "reference", "decisions", "pictures"):
        shutil.copytree(DOCS / folder, source / folder)
    shutil.copy(ROOT / "ARCHITECTURE.md", source / "architecture.md")
    shutil.copy(LOOK / "index.md.txt", source / "index.md")
    shutil.copytree(LOOK / "assets", source / "assets")
    link = "[{0}](codes/{0}.md)"
    (source / "reference/codes.md").write_text(pages.render_codes(link))
    (source / "reference/sdk.md").write_text(pages.render_sdk())
    (source / "reference/supervisor-names.md").write_text(pages.render_supervisor())
    write_code_pages(source / "reference" / "codes")
    for page in source.rglob("*.md"):
        page.write_text(bring_files(page, source))
    return {
        "Tutorial": [f"guides/{name}.md" for name in TUTORIAL],
        "How-to": [f"guides/{name}.md" for names in HOW_TO.values() for name in names],
        "Reference": [*(f"reference/{name}.md" for name in REFERENCE), *MADE],
        "Explanation": [*(f"reference/{name}.md" for name in EXPLANATION), "architecture.md"],
    }


def write_code_pages(folder: Path) -> None:
    """Write a page for each cause and each error code."""
    folder.mkdir()
    texts = pages.read_cause_texts()
    for cause in Cause:
        page = pages.render_cause(cause, texts[cause])
        (folder / f"{cause}.md").write_text(page.replace("(../guides/", "(../../guides/"))
    for code in pages.list_codes():
        page, text = folder / f"{code.code}.md", pages.render_code(code)
        if page.exists():
            text = page.read_text() + "\n## As an error of a request\n\n" + text.split("\n", 1)[1]
        page.write_text(text)


def bring_files(page: Path, source: Path) -> str:
    """Return a page whose links to files outside of docs/ lead to copies of them in the site."""
    here = page.relative_to(source)
    origin = ROOT if here.name == "architecture.md" else DOCS / here.parent

    def bring(match: re.Match[str]) -> str:
        target, _, anchor = match[1].partition("#")
        if not target or (page.parent / target).exists():
            return match[0]
        file = (origin / target).resolve()
        if not file.is_relative_to(ROOT) or not file.exists():
            return match[0]  # the builder says that it leads nowhere
        inside = file.relative_to(ROOT)
        if inside == Path("ARCHITECTURE.md"):
            copy = source / "architecture.md"
        elif inside.parts[0] == "docs" and (source / inside.relative_to("docs")).is_file():
            copy = source / inside.relative_to("docs")
        elif file.is_dir():
            copy = source / "files" / inside / "list.txt"
            copy.parent.mkdir(parents=True, exist_ok=True)
            names = sorted(f.name for f in file.iterdir() if not f.name.startswith("__"))
            copy.write_text("\n".join(names) + "\n")
        else:
            copy = source / "files" / inside
            if copy.suffix == ".md":
                copy = copy.with_suffix(".txt")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
        led = os.path.relpath(copy, page.parent)
        return f"]({led}{'#' + anchor if anchor else ''})"

    return FILES.sub(bring, page.read_text())


# ---- the builder


def configure(version: str, nav: list[Any]) -> dict[str, Any]:
    """Return the builder's configuration."""
    dark = {"media": "(prefers-color-scheme: dark)", "scheme": "slate", "primary": "black", "accent": "green",
            "toggle": {"icon": "material/weather-sunny", "name": "To the light look"}}  # fmt: skip
    light = {"media": "(prefers-color-scheme: light)", "scheme": "default", "primary": "black", "accent": "green",
             "toggle": {"icon": "material/weather-night", "name": "To the dark look"}}  # fmt: skip
    return {
        "site_name": "Holdfast",
        "site_description": agents.SUMMARY,
        "docs_dir": "pages",
        "site_dir": "site",
        "use_directory_urls": False,  # so that links hold in a folder, too
        "theme": {
            "name": "material",
            "font": False,
            "palette": [light, dark],
            "icon": {"logo": "material/anchor"},
            "favicon": "assets/anchor.svg",
            "features": ["navigation.tabs", "navigation.top", "navigation.indexes", "content.code.copy",
                         "search.highlight", "toc.follow"],
        },
        "plugins": ["search", "offline"],
        "markdown_extensions": ["tables", "attr_list", "md_in_html", "admonition", {"toc": {"permalink": True}},
                                "pymdownx.highlight", "pymdownx.superfences"],
        "extra": {"generator": False, "this_version": version},
        "extra_css": ["assets/site.css"],
        "extra_javascript": ["assets/versions-of-the-site.js"],
        "validation": {"links": {"anchors": "warn", "unrecognized_links": "warn"}},
        "nav": nav,
    }  # fmt: skip


def run_builder(builder: str, config: Path) -> int:
    """Run the builder, which fails at a warning; return its exit status."""
    words = [builder, "build", "--strict", "-f", str(config)]
    return subprocess.run(words, check=False).returncode


def finish(source: Path, target: Path, sections: dict[str, list[str]]) -> None:
    """Put beside the pages what agents and `holdfast docs` read: the Markdown, `llms.txt`, the skill, and
    the table of words that name a page."""
    for page in source.rglob("*.md"):
        copy = target / page.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, copy)
    for page in target.rglob("*.html"):
        up = "../" * (len(page.relative_to(target).parts) - 1)
        page.write_text(page.read_text().replace(SHIM, f"{up}assets/iframe-worker.js"))
    (target / "llms.txt").write_text(agents.render_llms(sections, source))
    skill = target / "skills" / "holdfast" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text(agents.render_skill())
    words = {p.stem: str(p.relative_to(source).with_suffix(".html")) for p in source.rglob("*.md")}
    words |= {name: f"reference/codes/{name}.html" for name in list_code_pages()}
    (target / "words.json").write_text(json.dumps(dict(sorted(words.items())), indent=0))


def write_versions(folder: Path, newest: str) -> None:
    """Write the list of versions that the selector reads, and the page that leads to the newest."""
    found = sorted((p.parent.name for p in folder.glob("*/index.html")), key=_order, reverse=True)
    (folder / "versions.js").write_text(f"window.holdfastVersions = {json.dumps(found)};\n")
    to = f"{newest if newest in found else found[0]}/index.html"
    (folder / "index.html").write_text(
        f'<!doctype html><meta charset="utf-8"><title>Holdfast</title><meta http-equiv="refresh" content="0; url={to}">'
        f'<a href="{to}">Holdfast {newest}</a>\n'
    )


def _order(version: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in version.split(".")]


def find_asks(site: Path) -> Iterator[tuple[str, str]]:
    """Yield each page, style and script that would ask another host, with the address."""
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            for match in ASKS.finditer(path.read_text()):
                yield str(path.relative_to(site)), next(filter(None, match.groups()))


if __name__ == "__main__":
    sys.exit(main())
