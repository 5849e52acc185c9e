"""torch's flight records on a host: requested through torch's pipe, and read from the file.

With `TORCH_NCCL_DEBUG_INFO_PIPE_FILE` NCCL's watchdog listens on a pipe for each rank, and writes
the rank's record to a file when any byte arrives there; it also does so by itself when a collective
times out. `member.flight` does the same for ranks without NCCL.
"""

import contextlib
import io
import os
import pickle
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
FILE_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_POLL_SECONDS = 0.1
_MOST_BYTES = 256 << 20


def make_flight_environment(prefix: str | None = None, entries: int = 2000) -> dict[str, str]:
    """Make the environment under which ranks keep records and write them on request.

    prefix: the beginning of the names of the pipes and the records' files, on every host; its
    folder must exist. None takes a prefix in /tmp that no other run has, because a pipe that
    another user owns would end the ranks of this run.
    """
    prefix = prefix or f"/tmp/holdfast-flight-{secrets.token_hex(6)}-"
    files = dict.fromkeys(FILE_VARIABLES, f"{prefix}record-")
    return {
        "TORCH_FR_BUFFER_SIZE": str(entries),
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        PIPE_VARIABLE: f"{prefix}pipe-",
        **files,
    }


def name_pipe(environ: Mapping[str, str], rank: int) -> str | None:
    """Name the pipe on which a rank with that environment takes requests; None where there is
    none."""
    stem = environ.get(PIPE_VARIABLE)
    return f"{stem}{rank}.pipe" if stem else None


def name_files(environ: Mapping[str, str], rank: int) -> list[str]:
    """Name the files in which the rank's record may lie: the file that its environment names, or
    torch's default."""
    told = [environ[name] for name in FILE_VARIABLES if environ.get(name)]
    if not told:
        cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '')}/.cache"
        told = [f"{cache}/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_"]
    return [f"{stem}{rank}" for stem in dict.fromkeys(told)]


def ask_for_record(environ: Mapping[str, str], rank: int) -> bool:
    """Ask a rank to write its record. Returns False where the rank does not listen."""
    pipe = name_pipe(environ, rank)
    if pipe is None:
        return False
    try:
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # no pipe, or its reader is gone
        return False
    try:
        os.write(fd, b"1\n")
        return True
    except OSError:  # asked often, and not read
        return False
    finally:
        os.close(fd)


def read_record(files: list[str], asked_at: float, until: float, since: float = 0.0) -> Any:
    """Read a rank's newest record; None where it has none.

    asked_at: when the record was requested (Unix time). until: the monotonic time up to which the
    call waits for a newer record, and after which an older one is accepted. since: when the rank's
    process began (Unix time); an older record is of another start, in which the rank was elsewhere.
    A record that is being written is read again.
    """
    while True:
        fresh, found = False, None
        for file in files:
            with contextlib.suppress(OSError):
                found_at = os.stat(file)
                if found_at.st_size <= _MOST_BYTES and found_at.st_mtime >= since:
                    record = _decode(Path(file).read_bytes())
                    if record is not None:
                        found = record
                        fresh = os.stat(file).st_mtime >= asked_at
                        break
        if fresh or time.monotonic() >= until:
            return found
        time.sleep(_POLL_SECONDS)


class _PlainUnpickler(pickle.Unpickler):  # yields only numbers, text, lists, tuples and maps
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"a flight record names {module_name}.{global_name}")


def _decode(data: bytes) -> Any:
    """Decode torch's pickle, without calling anything that it names; None where the data is no
    pickle, or not whole."""
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except Exception:  # a damaged pickle raises almost anything
        return None
