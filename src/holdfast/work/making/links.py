"""Look at what an environment was made from and points to, and have it point into the folder of the
job that runs, not of the job that made it.

RELINK-1  An editable install points to the folder in which it was made. Such a path is written anew
          as one below HOLDFAST_WORK, the folder of each task, so a job imports its own code. A path
          that cannot be written anew makes the files below it inputs (INPUT-2).
OWN-1     No file of an environment shares a hard link with another, and no link in its packages leads
          out of it, because writes and bits would reach the cache of an installer.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.work.making.copying import copy_tree, own_file

WORK = "HOLDFAST_WORK"
_TEXTS = (".pth", ".py", ".json", ".txt")
_TOLD = (
    "RECORD",
    "INSTALLER",
    "direct_url.json",
)  # they name the folder and import nothing from it
_LINE = re.compile(r"^(?P<path>/[^\n]*)$", re.MULTILINE)
_FUTURE = re.compile(r"^from __future__ import [^\n]*\n", re.MULTILINE)


def find_environments(folder: Path, *, depth: int = 4) -> list[Path]:
    """Return the environments in a folder, which have a file or a folder that only these have."""
    found = list[Path]()
    for base, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names or "conda-meta" in folders:
            found.append(Path(base))
            folders.clear()
        elif len(Path(base).relative_to(folder).parts) >= depth:
            folders.clear()
    return found


def find_packages(environment: Path) -> Iterator[Path]:
    """Yield the folders of an environment's packages."""
    for lib in ("lib", "lib64"):
        if not (environment / lib).is_symlink():
            yield from sorted(environment.glob(f"{lib}/python*/site-packages"))


def relink(packages: Path, made_in: Path, kept: list[Path]) -> set[str]:
    """Write the paths below `made_in` anew in the texts that an import reads (RELINK-1), and return
    those that could not be, relative to it. kept: environments below it, which stay. Raises
    OSError."""
    left, start = set[str](), f"{made_in}"
    mention = re.compile(re.escape(start) + r"(/[^\s'\"\\,:]*)?(?=[\s'\"\\,:]|$)")
    for path in [p for p in packages.iterdir() if p.suffix in _TEXTS and p.is_file()]:
        if path.name in _TOLD:
            continue
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        if start not in text:
            continue
        new = _relink_lines(text, start) if path.suffix == ".pth" else text
        new = _relink_words(text, start) if path.suffix == ".py" else new
        if new != text:
            own_file(path)
            path.write_text(new, encoding="utf-8", errors="surrogateescape")
        for found in mention.finditer(new.replace(_fall_back(start), "")):
            if not any(Path(found[0]).is_relative_to(one) for one in kept):
                left.add((found[1] or "").strip("/"))
    return left


def _fall_back(start: str) -> str:
    return f'os.environ.get("{WORK}", "{start}")'


def _relink_lines(text: str, start: str) -> str:
    """Write the lines of a .pth file anew: a path becomes a statement that adds the path in the
    job's folder."""

    def write(line: re.Match[str]) -> str:
        path = line["path"].strip()
        if path != start and not path.startswith(f"{start}/"):
            return line[0]
        return f"import os, sys; sys.path.append({_fall_back(start)} + {path[len(start) :]!r})"

    return _LINE.sub(write, text)


def _relink_words(text: str, start: str) -> str:
    """Write the path literals of a module anew, as an editable install's finder has them."""
    literal = re.compile(r"(['\"])" + re.escape(start) + r"(/[^'\"\n]*)?\1")
    new = literal.sub(lambda m: f"({_fall_back(start)} + {m[2] or ''!r})", text)
    if new == text:
        return text
    at = max((m.end() for m in _FUTURE.finditer(new)), default=0)
    return f"{new[:at]}import os\n{new[at:]}"


def find_local(packages: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the local folders and files that packages were installed from, and whether each install
    is editable (PEP 610)."""
    for file in sorted(packages.glob("*.dist-info/direct_url.json")):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            told = json.loads(file.read_bytes())
            url = urlsplit(told.get("url", ""))
            if url.scheme == "file" and url.path:
                yield (Path(unquote(url.path)), bool((told.get("dir_info") or {}).get("editable")))


def find_leads(environment: Path, made_in: Path, kept: list[Path]) -> set[str]:
    """Return where links of an environment lead below `made_in`, relative to it."""
    found, start = set[str](), os.path.realpath(made_in)
    for base, folders, names in os.walk(environment):
        for path in [p for name in (*folders, *names) if (p := Path(base, name)).is_symlink()]:
            leads = Path(os.path.realpath(path))
            if leads.is_relative_to(start) and not any(leads.is_relative_to(k) for k in kept):
                found.add("" if str(leads) == start else str(leads.relative_to(start)))
    return found


def find_copied(environments: list[Path], files: Mapping[str, Path]) -> set[str]:
    """Return the names of those `files` whose bytes stand in an environment, too: a clone of a file
    is no read that its access time would show."""
    by_size = dict[int, list[str]]()
    for name, path in files.items():
        if size := path.stat().st_size:
            by_size.setdefault(size, []).append(name)
    found = set[str]()
    for environment in environments:
        for base, _, names in os.walk(environment):
            for path in [Path(base, name) for name in names]:
                alike = by_size.get(path.lstat().st_size, ())
                found |= {n for n in alike if filecmp.cmp(files[n], path, shallow=False)}
    return found


def own_all(folder: Path, packages: list[Path]) -> None:
    """Give the environments in a folder files of their own (OWN-1). Raises OSError."""
    inside = [os.path.realpath(folder)]
    for base, folders, names in os.walk(folder):
        of_packages = any(Path(base).is_relative_to(one) for one in packages)
        for name in (*folders, *names):
            path = Path(base, name)
            status = path.lstat()
            if path.is_symlink():
                leads = os.path.realpath(path)
                outside = not any(leads.startswith(f"{one}/") for one in inside)
                if of_packages and outside and os.path.exists(leads):
                    _replace_link(path, Path(leads))
            elif status.st_nlink > 1 and path.is_file():
                own_file(path)


def _replace_link(path: Path, leads: Path) -> None:
    path.unlink()
    if leads.is_dir():
        copy_tree(leads, path)
    else:
        shutil.copy2(leads, path)
