"""Pack the site into a wheel of its own, which `holdfast docs` opens (`make docs-wheel`), so that the slim
set stays slim: `python -m docs.site.wheel SITE DIST`."""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

from holdfast import version

DISTRIBUTION = getattr(version, "DISTRIBUTION", "holdfast")
DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip has, so that two builds are equal


def main() -> int:
    """Write the wheel, print its path, and return the exit status."""
    site, dist = Path(sys.argv[1]) / version.VERSION, Path(sys.argv[2])
    if not (site / "words.json").exists():
        print(f"docs: {site} has no site; `make docs` builds it", file=sys.stderr)
        return 1
    dist.mkdir(parents=True, exist_ok=True)
    print(write_wheel(site, dist))
    return 0


def write_wheel(site: Path, dist: Path) -> Path:
    """Write the wheel of a built site, and return its path."""
    name = f"{DISTRIBUTION.replace('-', '_')}_docs-{version.VERSION}"
    info = f"{name}.dist-info"
    files = {
        f"holdfast_docs/site/{p.relative_to(site)}": p.read_bytes()
        for p in sorted(site.rglob("*"))
        if p.is_file() and p.suffix != ".gz"
    }
    files["holdfast_docs/__init__.py"] = (
        b'"""The documents of Holdfast, which `holdfast docs` opens."""\n'
    )
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.4\nName: {DISTRIBUTION}-docs\nVersion: {version.VERSION}\n"
        "Summary: The documents of Holdfast, offline.\nLicense-Expression: Apache-2.0 AND MIT\n"
        "Requires-Python: >=3.11\n"
    ).encode()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: holdfast\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = dist / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as packed:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, DATE)
            entry.external_attr = 0o644 << 16
            packed.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    sys.exit(main())
