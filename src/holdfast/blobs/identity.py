"""The id of a blob store, and whether a server may keep its blobs there.

STORE-ID-1  A blob store has an id of its own, made once by whichever server is first there. The
            database knows the id of the one store that holds the blobs it names. A server with
            another store does not join servers that serve, because each would look in vain for
            what the other keeps. Where it is alone it serves, and says what it cannot find, until
            the store holds all that the database names; then the database knows that store instead.
"""

import enum
import secrets
import socket
from collections.abc import Collection, Iterable

from holdfast.blobs.interface import BlobMissing, BlobStore

ID_NAME = "store-id"
"""The name of the blob with the id. No job has such an id, so no sweep deletes the blob."""
_KINDS = {
    "packs": ("pack of code and files", "packs of code and files"),
    "plans": ("bundle of code and files", "bundles of code and files"),
    "calls": ("checkpoint of a call", "checkpoints of calls"),
}
_OF_JOBS = ("checkpoint of a job", "checkpoints of jobs")
_SHOWN_JOBS = 3


class PlaceStanding(enum.Enum):
    """The verdict on a server's blob store beside the blob store that the database knows."""

    SAME = "same"
    ADOPTED = "adopted"
    STRANGE = "strange"


def judge(own: str, known: str, named: int, held: int, *, served: bool) -> PlaceStanding:
    """Decide how a server's blob store stands (STORE-ID-1).

    own: its id. known: the id that the database knows, empty for none. named: how many blobs the
    database names; held: how many of them the store holds. served: whether another server serves.
    """
    if own == known:
        return PlaceStanding.SAME
    if not known and (held or not named):
        return PlaceStanding.ADOPTED
    return PlaceStanding.ADOPTED if held == named and not served else PlaceStanding.STRANGE


async def read_id(blobs: BlobStore) -> str:
    """Return the id of a blob store, empty where it has none yet. Raises BlobsUnavailable."""
    try:
        return b"".join([piece async for piece in blobs.read(ID_NAME)]).decode(errors="replace")
    except BlobMissing:
        return ""


async def give_id(blobs: BlobStore, wanted: str = "") -> str:
    """Give a blob store an id where it has none, and return the one that it has then. wanted: the
    id to give; empty for a new one. Raises BlobsUnavailable."""
    return (await blobs.claim(ID_NAME, (wanted or secrets.token_hex(8)).encode())).decode()


def name_place(place: str) -> str:
    """Return where a blob store is, for a person at any machine."""
    return place if "://" in place else f"{place} on {socket.gethostname()}"


def say_missing(missing: Collection[str]) -> str:
    """Say what the names of blobs that are missing stand for: "2 checkpoints of jobs (…) and …"."""
    counts: dict[tuple[str, str], int] = {}
    for name in missing:
        words = _KINDS.get(name.partition("/")[0], _OF_JOBS)
        counts[words] = counts.get(words, 0) + 1
    said = [
        f"{count} {words[count > 1]}{_list_jobs(words, missing)}" for words, count in counts.items()
    ]
    return " and ".join(said)


def _list_jobs(words: tuple[str, str], missing: Iterable[str]) -> str:
    if words != _OF_JOBS:
        return ""
    folders = (name.partition("/")[0] for name in missing)
    jobs = list(dict.fromkeys(folder for folder in folders if folder not in _KINDS))
    return f" ({', '.join(jobs[:_SHOWN_JOBS])}{', …' if len(jobs) > _SHOWN_JOBS else ''})"
