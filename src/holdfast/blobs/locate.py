"""Open the blob store that the value of `--blobs` names."""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.blobs.folder import FolderBlobs
from holdfast.blobs.interface import BlobStore
from holdfast.errors import ValidationError


def open_blobs(where: str | None, environ: Mapping[str, str]) -> BlobStore:
    """Return the store at `where`: a folder, `s3://bucket/prefix`, or None for this user's own
    folder. Raises ValidationError where `where` cannot be read, has credentials in it, or needs an
    extra that is not installed."""
    if not where:
        home = environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        return FolderBlobs(Path(home, "holdfast", "blobs"))
    if "://" not in where:
        return FolderBlobs(Path(where).expanduser().absolute())
    parts = urlsplit(where)
    if parts.scheme != "s3" or not parts.netloc:
        raise ValidationError(
            f"{where!r} is neither a folder nor s3://bucket/prefix", field="blobs"
        )
    if "@" in parts.netloc or parts.query:
        raise ValidationError(
            "credentials and options of a bucket come from the environment (AWS_…)", field="blobs"
        )
    from holdfast.blobs.objects import ObjectBlobs

    return ObjectBlobs(where)
