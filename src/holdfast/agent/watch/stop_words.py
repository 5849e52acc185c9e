"""Tell a task that it has to stop, why, and until when (`work.stop_word`)."""

import logging
import os
from contextlib import suppress

import msgspec

from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.checkpoints import out_path
from holdfast.work.stop_word import NAME

log = logging.getLogger("holdfast.agent.watch.stop_words")


def leave_word(task: AgentTask, why: str, until: float) -> None:
    """Write the word for the task into the folder into which the task saves. until: the instant of
    the kill (CLOCK_BOOTTIME). The task may write there too, so no link of its is followed. A word
    that cannot be written is logged, because the task is stopped all the same."""
    folder = out_path(task)
    part, data = folder / f"{NAME}.part", msgspec.json.encode({"why": why, "until": until})
    try:
        with suppress(FileNotFoundError):
            part.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(part, flags, 0o644)
        with open(fd, "wb", buffering=0) as file:
            file.write(data)
        part.rename(folder / NAME)
    except FileNotFoundError:
        return  # its folder was never made, or is gone because it has ended
    except OSError as error:
        log.warning(f"the word to stop cannot be written: {error}", extra=task.about())
