"""Fetch the parts of others that the dashboard's pages use, by npm (`make kept`), and compare each with
the digests of `kept.toml`. `--print` shows the digests of what was fetched, for a new version."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

KEPT = Path(__file__).parents[1] / "src" / "holdfast" / "web" / "static" / "kept"


def main() -> int:
    """Fetch every part, and return the exit status."""
    only_prints = "--print" in sys.argv[1:]
    for part in tomllib.loads((KEPT / "kept.toml").read_text())["part"]:
        wrong = fetch(part, only_prints=only_prints)
        if wrong:
            print(wrong, file=sys.stderr)
            return 1
    return 0


def fetch(part: dict[str, object], *, only_prints: bool) -> str:
    """Fetch one part. Return what is wrong with it; an empty text where nothing is."""
    named = f"{part['name']}@{part['version']}"
    with tempfile.TemporaryDirectory() as folder:
        pack = ["npm", "pack", "--silent", "--pack-destination", folder, named]
        subprocess.run(pack, check=True, stdout=subprocess.DEVNULL)
        (packed,) = Path(folder).iterdir()
        digest = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
        if part["integrity"] != f"sha512-{digest}":
            return f"{named} is not what it was: sha512-{digest}"
        with tarfile.open(packed) as files:
            for inside, file in part["files"].items():  # type: ignore[attr-defined]  # of TOML
                data = files.extractfile(f"package/{inside}").read()  # type: ignore[union-attr]  # a file
                found = hashlib.sha256(data).hexdigest()
                if only_prints:
                    print(file["as"], found)
                elif found != file["sha256"]:
                    return f"{file['as']} has the digest {found}"
                else:
                    (KEPT / file["as"]).write_bytes(data)
    return ""


if __name__ == "__main__":
    sys.exit(main())
