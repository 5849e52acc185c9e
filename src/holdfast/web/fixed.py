"""The fixed files of the pages: style, scripts, and the kept parts of others."""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
from collections.abc import Mapping
from importlib import resources

from holdfast.version import VERSION

TYPES = {
    "css": "text/css",
    "js": "text/javascript",
    "mjs": "text/javascript",
    "svg": "image/svg+xml",
}
_SCRIPT = (
    "page.js",
    "live.js",
    "refresh.js",
    "acts.js",
    "lists.js",
    "again.js",
    "keys.js",
    "output.js",
    "grid.js",
    "plot.js",
)
"""The parts of the pages' script, in the order in which a browser runs them."""


@functools.cache
def read_fixed_files() -> dict[str, bytes]:
    """Return the fixed files by name. What a page needs of one sort is one file, so that it takes few
    requests: the parts of the pages' script, and on the shell page the kept parts with what is ours."""
    folder = resources.files("holdfast.web") / "static"
    files = {
        each.name: each.read_bytes()
        for each in folder.iterdir()
        if each.name.rpartition(".")[2] in TYPES
    }
    files["pages.js"] = b"".join((folder / "script" / name).read_bytes() for name in _SCRIPT)
    kept = {each.name: each.read_bytes() for each in (folder / "kept").iterdir()}
    files["shell.mjs"] = join_module(files["shell.mjs"], kept)
    styles = (text for name, text in sorted(kept.items()) if name.endswith(".css"))
    files["shell.css"] = b"\n".join((files["look.css"], *styles))
    return files


def join_module(script: bytes, kept: Mapping[str, bytes]) -> bytes:
    """Return a module with the kept modules that it imports in their places, each in a function of its
    own, so that their short names do not meet."""

    def place(found: re.Match[bytes]) -> bytes:
        name, text = found[1], kept[found[2].decode()]
        text, count = re.subn(rb"export\{(\w+) as " + name + rb"\};", rb"return \1;", text)
        assert count == 1, f"{found[2]!r} gives no {name!r}"
        text = re.sub(rb"(?m)^//# sourceMappingURL=.*$", b"", text)
        return b"const " + name + b" = (() => {\n" + text.strip() + b"\n})();"

    return re.sub(rb'(?m)^import \{ (\w+) \} from "\./kept/([^"]+)";$', place, script)


@functools.cache
def compress_fixed(name: str) -> bytes:
    """Return a fixed file as it is sent to a browser that takes gzip."""
    return gzip.compress(read_fixed_files()[name], 9, mtime=0)


@functools.cache
def fixed_version() -> str:
    """Return a word that changes with the fixed files, which browsers keep for ever."""
    digest = hashlib.sha256(VERSION.encode())
    for name, data in sorted(read_fixed_files().items()):
        digest.update(name.encode() + data)
    return digest.hexdigest()[:12]
