"""The seed that a supervised job gets when it is submitted: what the keys of its attempts are made
of.

It is kept with the job's secrets, reaches its tasks in their environment, and is in no spec, no
hash and no answer of the API.
"""

from __future__ import annotations

from holdfast.core.spec import JobSpec

SEED_VARIABLE = "HOLDFAST_SUPERVISE_SEED"
SEED_BYTES = 32


def mint_secrets(spec: JobSpec, entropy: bytes) -> dict[str, str]:
    """What Holdfast adds to a job's secrets: of a supervised one the seed, `entropy` in
    hexadecimal; else nothing."""
    if not spec.supervised:
        return {}
    assert len(entropy) >= SEED_BYTES
    return {SEED_VARIABLE: entropy[:SEED_BYTES].hex()}
