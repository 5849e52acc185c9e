"""The keys of one run: made for each run, passed to managers by file (0600) or environment.

The supervisor has a key pair, and all managers of the run share another. A manager's file holds no
secret of the supervisor's. Under Holdfast no keys are passed on: each rank of an attempt derives
them from the job's seed.
"""

import hashlib
import hmac
import os
from pathlib import Path

import msgspec

from holdfast.errors import ValidationError

KEY_VARIABLE = "HOLDFAST_SUPERVISOR_KEY"


class ManagerKey(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that a manager needs; without encryption only the run's name."""

    run: str
    server_public: str = ""
    client_public: str = ""
    client_secret: str = ""


class RunKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Both key pairs, in Z85 text; empty without encryption."""

    run: str
    server_public: str = ""
    server_secret: str = ""
    client_public: str = ""
    client_secret: str = ""

    def for_managers(self) -> ManagerKey:
        """Return the part that managers get."""
        return ManagerKey(
            run=self.run,
            server_public=self.server_public,
            client_public=self.client_public,
            client_secret=self.client_secret,
        )


def make_keys(run: str, encrypt: bool) -> RunKeys:
    """Make the keys of a run."""
    if not encrypt:
        return RunKeys(run=run)
    import zmq

    return _complete_keys(run, zmq.curve_keypair()[1], zmq.curve_keypair()[1])


def _complete_keys(run: str, server_secret: bytes, client_secret: bytes) -> RunKeys:
    import zmq

    return RunKeys(
        run=run,
        server_public=zmq.curve_public(server_secret).decode(),
        server_secret=server_secret.decode(),
        client_public=zmq.curve_public(client_secret).decode(),
        client_secret=client_secret.decode(),
    )


def derive_keys(seed: bytes, job_id: str, attempt: int) -> RunKeys:
    """Derive the keys of one attempt of a supervised job: equal wherever the seed is known,
    different for each attempt and job.

    HKDF (RFC 5869) with SHA-256; any 32 bytes that it yields are a Curve25519 secret. The run's
    name is derived as well, so that managers of an earlier attempt are refused.
    """
    from zmq.utils import z85

    root = hmac.digest(b"holdfast supervise 1", seed, hashlib.sha256)

    def derive(purpose: str) -> bytes:
        info = b"\0".join(word.encode() for word in (purpose, job_id, str(attempt)))
        return hmac.digest(root, info + b"\1", hashlib.sha256)

    secrets = (z85.encode(derive(whose)) for whose in ("supervisor", "manager"))
    return _complete_keys(derive("run")[:16].hex(), *secrets)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that its owner alone can read: whole or not at all, synced before it gets its
    name."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def write_manager_key(path: Path, keys: RunKeys) -> None:
    """Write the managers' key to `path`. Raises ValidationError where the file cannot be
    written."""
    try:
        write_private(path, msgspec.json.encode(keys.for_managers()) + b"\n")
    except OSError as error:
        raise ValidationError(
            f"the key file {path} cannot be written: {error.strerror}", field="key_file"
        ) from error


def parse_manager_key(text: str | bytes) -> ManagerKey:
    """Decode the text that `write_manager_key` wrote, from a file or the environment.

    Raises:
        ValidationError: the text is no manager key.
    """
    try:
        key = msgspec.json.decode(text, type=ManagerKey)
    except msgspec.MsgspecError as error:
        raise ValidationError(f"this is no manager key: {error}", field="key_file") from error
    lengths = {len(key.server_public), len(key.client_public), len(key.client_secret)}
    if lengths not in ({40}, {0}):
        raise ValidationError("a manager key has three parts of 40 characters", field="key_file")
    return key
