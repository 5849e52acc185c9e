"""The version of Holdfast, and the command that installs it: on the floor below all that name
them."""

VERSION = "0.1.0"
DISTRIBUTION = "holdfast-gpu"
"""The name under which Holdfast is installed, because `holdfast` on PyPI is another project. The
package that is imported and the command are `holdfast`."""
PUBLISHED = False
"""True once a version was uploaded under that name; until then a clone is installed."""


def name_install(*parts: str, version: str = "") -> str:
    """Return the command that installs Holdfast: with optional parts, and of a version."""
    extras = f"[{','.join(parts)}]" if parts else ""
    if PUBLISHED:
        return f"pip install '{DISTRIBUTION}{extras}{version and f'=={version}'}'"
    place = f"'.{extras}'" if extras else "."
    return f"pip install {place} in a clone of Holdfast{version and f' {version}'}"
