"""The seed of a supervised job, made when it is submitted; the keys of its attempts derive from it.

It is kept with the job's secrets and reaches its tasks in their environment, and nothing else.
"""

from holdfast.core.spec import JobSpec

SEED_VARIABLE = "HOLDFAST_SUPERVISE_SEED"
SEED_BYTES = 32


def mint_secrets(spec: JobSpec, entropy: bytes) -> dict[str, str]:
    """Return Holdfast's own secrets of a job: the seed (`entropy` in hex) of a supervised one."""
    if not spec.supervised:
        return {}
    assert len(entropy) >= SEED_BYTES
    return {SEED_VARIABLE: entropy[:SEED_BYTES].hex()}
