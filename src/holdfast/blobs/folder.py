"""Blobs as files under one folder, which all replicas of the controller must share.

A blob is written under another name, flushed to the disk and renamed, and the folder is flushed, so
that a crash or a loss of power leaves the whole blob or none (BLOB-1).
"""

import asyncio
import contextlib
import errno
import functools
import io
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from holdfast.blobs.interface import (
    PIECE_BYTES,
    BlobInfo,
    BlobMissing,
    BlobsUnavailable,
    check_name,
    check_size,
)

T = TypeVar("T")
_PARTS = ".parts"
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class FolderBlobs:
    """A folder, made (0700) when the first blob is written.

    Files are read and written in threads of its own, so that a disk that hangs blocks neither the
    API nor the common pool. Threads use file objects instead of descriptors, because a cancelled
    caller leaves a thread behind, and a descriptor could belong to another file by then.
    """

    def __init__(self, folder: Path, *, threads: int = 8) -> None:
        self._folder = folder
        self._threads = ThreadPoolExecutor(threads, "blobs")

    @property
    def place(self) -> str:
        """See `BlobStore.place`."""
        return str(self._folder)

    async def write(
        self, name: str, pieces: AsyncIterator[bytes], *, size: int | None = None
    ) -> None:
        """See `BlobStore.write`."""
        path = self._folder / check_name(name)
        part = self._folder / _PARTS / secrets.token_hex(12)
        file = await self._do(lambda: _create(part, size))
        try:
            try:
                async for piece in pieces:
                    await self._do(functools.partial(_write_all, file, piece))
                await self._do(lambda: os.fsync(file))
            finally:
                await self._do(file.close)
            await self._do(lambda: _put_in_place(part, path))
        except BaseException:
            self._threads.submit(_unlink, part)
            raise

    async def read(self, name: str, *, size: int | None = None) -> AsyncIterator[bytes]:
        """See `BlobStore.read`."""
        path = self._folder / check_name(name)

        def open_it() -> io.FileIO:
            try:
                return io.FileIO(os.open(path, os.O_RDONLY | _FLAGS))
            except FileNotFoundError:
                raise BlobMissing(
                    f"the blob {name} is not in {self._folder}; was it deleted, or do the "
                    "controller's replicas not share it?"
                ) from None

        file = await self._do(open_it)
        try:
            found = await self._do(lambda: os.fstat(file.fileno()).st_size)
            check_size(name, self.place, found, size)
            while piece := await self._do(lambda: file.read(PIECE_BYTES)):
                yield piece
        finally:
            self._threads.submit(file.close)

    async def find(self, names: Collection[str]) -> set[str]:
        """See `BlobStore.find`."""
        paths = {name: self._folder / check_name(name) for name in names}
        return await self._do(lambda: {name for name, path in paths.items() if path.exists()})

    async def claim(self, name: str, data: bytes) -> bytes:
        """See `BlobStore.claim`."""
        path = self._folder / check_name(name)
        part = self._folder / _PARTS / secrets.token_hex(12)

        def work() -> bytes:
            with _create(part, len(data)) as file:
                _write_all(file, data)
                os.fsync(file)
            try:
                with contextlib.suppress(FileExistsError):
                    os.link(part, path)  # unlike a rename, it replaces nothing
            finally:
                _unlink(part)
            _flush_folder(path.parent)
            return path.read_bytes()

        return await self._do(work)

    async def delete(self, names: Collection[str]) -> None:
        """See `BlobStore.delete`."""
        paths = [self._folder / check_name(name) for name in names]

        def work() -> None:
            for path in paths:
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # it has other blobs
                    path.parent.rmdir()

        if paths:
            await self._do(work)

    async def list(self) -> AsyncIterator[BlobInfo]:
        """See `BlobStore.list`."""
        now = time.time()
        for found in await self._do(lambda: list(_walk(self._folder, now))):
            yield found

    async def sweep(self, older_seconds: float) -> int:
        """See `BlobStore.sweep`. A part that is being written has a new time, so it stays."""

        def work() -> int:
            count, before = 0, time.time() - older_seconds
            with (
                contextlib.suppress(FileNotFoundError),
                os.scandir(self._folder / _PARTS) as entries,
            ):
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # its writer has finished
                        if entry.stat(follow_symlinks=False).st_mtime < before:
                            os.unlink(entry.path)
                            count += 1
            return count

        return await self._do(work)

    async def close(self) -> None:
        """See `BlobStore.close`. Does not wait for a thread that hangs in the disk."""
        self._threads.shutdown(wait=False, cancel_futures=False)

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as error:
            raise BlobsUnavailable(
                f"the blob folder {self._folder} cannot be used: {error.strerror or error}"
            ) from error


def _create(part: Path, size: int | None) -> io.FileIO:
    """Open a new part. Raises OSError, also where the disk has no room for all of it, because
    filling the disk at every retry would hurt its other users, such as a database."""
    part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if size:
        disk = os.statvfs(part.parent)
        if size > disk.f_bavail * disk.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return io.FileIO(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600), "wb")


def _write_all(file: io.FileIO, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[file.write(view) :]


def _put_in_place(part: Path, path: Path) -> None:
    while True:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.rename(part, path)
            break
        except FileNotFoundError:
            if not part.exists():
                raise  # else a deletion removed the empty folder between the two steps
    for folder in (path.parent, path.parent.parent):
        _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):  # the sweep finds it later
        path.unlink(missing_ok=True)


def _walk(folder: Path, now: float) -> Iterator[BlobInfo]:
    for base, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(base, name)
            try:
                status = path.stat(follow_symlinks=False)
            except OSError:
                continue  # deleted meanwhile
            yield BlobInfo(
                name=str(path.relative_to(folder)),
                size=status.st_size,
                age_seconds=now - status.st_mtime,
            )
