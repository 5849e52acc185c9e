"""Let a program go on whose environment lies in a package cache, as that of `uvx` does.

`uv cache clean` deletes such an environment under the program, which then imports nothing more and
starts no part again. So the program moves, before all else, into a copy in its own folder. The copy
is made of hard links, which cost no room and no time.
"""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from holdfast.version import name_install

_CACHE_MARK = "CACHEDIR.TAG"  # https://bford.info/cachedir/
_FOLDER = "program"


def is_in_cache(prefix: Path) -> bool:
    """Return whether an environment lies in a folder that calls itself a cache. An environment that
    calls itself one, as uv's own do, is not meant."""
    return any((folder / _CACHE_MARK).is_file() for folder in prefix.parents)


def copy_environment(prefix: Path, home: Path) -> Path:
    """Copy an environment into `home`, where only the newest is kept, and return the copy. Raises
    OSError."""
    kept, part = home / prefix.name, home / "part"
    if not kept.is_dir():
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(prefix, part, symlinks=True, copy_function=_link)
        part.rename(kept)
    return kept


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without links
        shutil.copy2(source, target)


def leave_cache(folder: Path, say: Callable[[str], None]) -> None:
    """Run this program again from a copy of its environment in `folder`, if that lies in a cache.
    Tasks then find the `python` of the machine, and not that of the copy."""
    prefix = Path(sys.prefix)
    if not is_in_cache(prefix):
        return
    try:
        python = str(copy_environment(prefix, folder / _FOLDER) / "bin" / "python")
    except OSError as error:
        say(f"{prefix} cannot be copied ({error.strerror}); clean no cache while this runs")
        return
    paths = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(path for path in paths if path != str(prefix / "bin"))
    os.execv(python, [python, "-P", "-m", "holdfast", *sys.argv[1:]])


def say_where_jobs_import(folder: Path) -> str | None:
    """Return the sentence for a program that runs from such a copy; None for any other."""
    if Path(sys.prefix).parent != folder / _FOLDER:
        return None
    return (
        "uvx brought this Holdfast, so a job that imports holdfast needs it in its own environment: "
        f"{name_install()}"
    )
