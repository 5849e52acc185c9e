"""Find the mounts that this host's configuration lists, and make those of buckets.

A mount is a folder of the host, or a bucket that one of three programs of the host shows as a
folder: rclone, s3fs, or mount-s3 (Mountpoint). The agent starts that program when the first job
needs the bucket; the program runs on by itself, and the next agent finds the folder as it is.
"""

import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.agent.config import HostMount
from holdfast.core.data.named import MOUNT
from holdfast.errors import ValidationError
from holdfast.process.files import make_private_folder

log = logging.getLogger("holdfast.agent.data.mounts")

MOUNT_SECONDS = 30.0


def list_labels(mounts: Mapping[str, HostMount]) -> dict[str, str]:
    """Return the labels of the mounts that this host has now (MOUNT-1): a folder must be there, and
    for a bucket the program that shows it."""
    found = {}
    for name, mount in mounts.items():
        if (why := find_lack(mount)) is not None:
            log.warning(f"mount {name} is not offered: {why}")
        else:
            found[MOUNT + name] = "yes"
    return found


def find_lack(mount: HostMount) -> str | None:
    """Return why a mount cannot be used here; None if it can be used."""
    if mount.bucket:
        there = shutil.which(mount.tool) is not None
        return None if there else f"this host has no program {mount.tool}"
    return None if os.path.isdir(mount.path) else f"{mount.path} is no folder of this host"


class HostMounts:
    """The mounts of this host. root: the folder of the buckets' folders."""

    def __init__(
        self,
        mounts: Mapping[str, HostMount],
        root: Path,
        is_mounted: Callable[[str], bool] = os.path.ismount,
    ) -> None:
        self._mounts = mounts
        self._root = root
        self._is_mounted = is_mounted

    def open(self, name: str) -> tuple[str, str]:
        """Return the path of a mount and its mode, "ro" or "rw". Raises ValidationError with the
        reason where the mount cannot be used."""
        mount = self._mounts.get(name)
        if mount is None:
            raise ValidationError(f"this host lists no mount {name} (`holdfast agent --mount`)")
        if (why := find_lack(mount)) is not None:
            raise ValidationError(f"mount {name} cannot be used: {why}")
        mode = "rw" if mount.write else "ro"
        return (self._open_bucket(name, mount) if mount.bucket else mount.path), mode

    def _open_bucket(self, name: str, mount: HostMount) -> str:
        folder = self._root / name
        make_private_folder(folder)
        if self._is_mounted(str(folder)):
            return str(folder)
        argv = write_command(mount, str(folder))
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=MOUNT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ValidationError(f"mount {name} cannot be made: {error}") from error
        if done.returncode or not self._is_mounted(str(folder)):
            said = (done.stderr or done.stdout).decode(errors="replace").strip()[-500:]
            why = said or f"{mount.tool} ended with status {done.returncode}, and shows no folder"
            raise ValidationError(f"mount {name} cannot be made: {why}")
        return str(folder)


def write_command(mount: HostMount, folder: str) -> list[str]:
    """Return the command that shows a bucket as a folder, and that returns once the folder is
    there."""
    bucket, _, prefix = mount.bucket.partition("/")
    if mount.tool == "rclone":
        mode = ["--vfs-cache-mode", "writes"] if mount.write else ["--read-only"]
        return ["rclone", "mount", mount.bucket, folder, "--daemon", *mode]
    if mount.tool == "s3fs":
        where = f"{bucket}:/{prefix}" if prefix else bucket
        return ["s3fs", where, folder, *([] if mount.write else ["-o", "ro"])]
    mode = ["--allow-delete", "--allow-overwrite"] if mount.write else ["--read-only"]
    below = ["--prefix", f"{prefix.rstrip('/')}/"] if prefix else []
    return ["mount-s3", bucket, folder, *below, *mode]
