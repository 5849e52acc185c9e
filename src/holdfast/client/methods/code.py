"""Code that travels with jobs: send a folder, and read what a job has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.client.scripts import Caller, Script, UseCaller, runs
from holdfast.core.bundles.code import CodeRef
from holdfast.errors import ValidationError

if TYPE_CHECKING:
    from holdfast.client.bundles.fetch import JobCode

MAX_BYTES = 1 << 30


class CodeMethods:
    """The client's methods about code."""

    @runs
    def send_code(
        self,
        folder: str | os.PathLike[str],
        *,
        project: str = "default",
        max_bytes: int = MAX_BYTES,
        send_anyway: bool = False,
    ) -> Script[CodeRef]:
        """Send a folder, and return what jobs name as their `code`: `submit(…, code=that)`. Only
        what the controller does not have goes over the wire.

        Raises:
            ValidationError: the folder has more than `max_bytes`; or it may hold secrets, or is the
                home folder, and `send_anyway` is False; or it changes while it is read.
            TooLarge: the store of code is full.
        """
        code = yield from send_code_once(folder, project, max_bytes, send_anyway=send_anyway)
        return code

    @runs
    def code(self, job_id: str) -> Script[JobCode]:
        """Return the code of a job: the files in it. Raises NotFound where the job has no code."""
        from holdfast.client.bundles.fetch import fetch_code

        found: JobCode = yield UseCaller(lambda caller: fetch_code(caller, job_id))
        return found

    @runs
    def restore_code(self, job_id: str, folder: str | os.PathLike[str]) -> Script[None]:
        """Write the code of a job into a folder, which is new or empty."""
        from holdfast.client.bundles.fetch import fetch_code, restore_code

        def work(caller: Caller) -> None:
            restore_code(caller, fetch_code(caller, job_id), os.fspath(folder))

        yield UseCaller(work)


def send_code_once(
    folder: str | os.PathLike[str],
    project: str,
    max_bytes: int = MAX_BYTES,
    *,
    send_anyway: bool = False,
) -> Script[CodeRef]:
    """Send a folder without a question to a person. Raises ValidationError."""
    from holdfast.client.bundles.care import find_home, find_secrets, say_too_large
    from holdfast.client.bundles.send import FolderSender
    from holdfast.client.bundles.walk import walk

    def refuse(worries: list[str]) -> None:
        if worries and not send_anyway:
            raise ValidationError(
                f"the folder is not sent: {'; '.join(worries)}. Name them in .holdfastignore, or say "
                "send_anyway",
                field="workdir",
                code="workdir_refused",
            )

    def work(caller: Caller) -> CodeRef:
        refuse(find_home(os.fspath(folder), os.path.expanduser("~")))
        found = walk(os.fspath(folder))
        if found.size > max_bytes:
            raise ValidationError(
                say_too_large(found.size, max_bytes, found.list_largest()),
                field="workdir",
                code="workdir_too_large",
            )
        refuse(find_secrets(one.path for one in found.found))
        return FolderSender(caller, found, project, caller.place.url).send().code

    code: CodeRef = yield UseCaller(work)
    return code
