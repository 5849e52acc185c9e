"""The sentences about slow and wrong ranks, the same in events, `show` and `why`."""

from collections.abc import Mapping, Sequence

from holdfast.core.gpus import GpuTelemetry
from holdfast.core.placement.ranks import name_ranks
from holdfast.core.stragglers.agree import Disagreement
from holdfast.core.stragglers.values import GangSlowed, PaceMeasure, SlowRank, Steady

_SHOWN = 8
_HOT = 85.0  # °C: most cards lower their clock soon above


def say_slow(slow: SlowRank, host: str) -> str:
    """Return the sentence for a rank that is slow by itself."""
    step, own, others = map(_say, (slow.step_seconds, slow.seconds, slow.others_seconds))
    if slow.measure is PaceMeasure.OWN:
        why = f"in a step of {step} it works for {own} and the others for {others}, then they wait"
    elif slow.measure is PaceMeasure.STEP:
        why = f"a step takes it {own} and the others {others}"
    elif slow.measure is PaceMeasure.CPU:
        why = f"in a step of {step} it uses or wants a processor for {own}, the others for {others}"
    else:
        late = _say(max(0.0, slow.seconds - slow.others_seconds))
        why = f"in a step of {step} its beat comes {late} after those of the others"
    return (
        f"rank {slow.rank} on {host} takes {slow.ratio:.2f} times as long as the others by itself, "
        f"since step {slow.since_step}: {why}"
    )


def say_steady(steady: Steady, host: str) -> str:
    """Return the sentence for a rank that keeps up again."""
    return f"rank {steady.rank} on {host} keeps up with the others again, at step {steady.at_step}"


def say_slowed(slowed: GangSlowed) -> str:
    """Return the sentence for a gang that became slower as a whole."""
    return (
        f"the gang slowed by {slowed.ratio:.2f} times, from {_say(slowed.before_seconds)} to "
        f"{_say(slowed.step_seconds)} a step, since step {slowed.since_step}; no rank stands out"
    )


def say_disagreement(found: Disagreement, hosts: Mapping[int, str]) -> str:
    """Return the sentence for ranks whose checksums of one step differ."""
    if not found.comparable:
        return (
            f"the ranks' checksums of step {found.step} differ, and they were never alike before, so "
            "they say nothing about a host: pass what all ranks must have alike, or name the ranks "
            "that must with `group`"
        )
    if not found.odd:
        return (
            f"the ranks' checksums of step {found.step} differ, and no majority says which rank "
            f"computed wrongly: {_list_texts(found.texts)}"
        )
    odd = name_ranks(found.odd)
    where = ", ".join(dict.fromkeys(hosts.get(rank, "?") for rank in found.odd))
    right = len(found.texts) - len(found.odd)
    wrong = ", ".join(found.texts[rank] for rank in found.odd[:_SHOWN])
    common = next(text for rank, text in found.texts.items() if rank not in found.odd)
    return (
        f"{odd} on {where} computed step {found.step} wrongly: checksum {wrong}, where the {right} "
        f"other ranks have {common}"
    )


def _list_texts(texts: Mapping[int, str]) -> str:
    shown = [f"rank {rank} has {text}" for rank, text in list(texts.items())[:_SHOWN]]
    return ", ".join(shown) + (", …" if len(texts) > _SHOWN else "")


def say_rerun(
    found: Disagreement, wrong: Sequence[int], right: str, hosts: Mapping[int, str]
) -> str:
    """Return the sentence for ranks that a later attempt showed to be wrong."""
    where = ", ".join(dict.fromkeys(hosts.values()))
    return (
        f"{name_ranks(wrong)} on {where} computed step {found.step} wrongly: the next attempt did the "
        f"step again, and all its ranks have checksum {right}"
    )


def say_readings(gpus: Sequence[GpuTelemetry], strain: str) -> str:
    """Return the newest readings of a host that may explain why its ranks are slow, as a sentence;
    "" without any. strain: the sentence about the host itself."""
    words = [strain] if strain else []
    words += [f"GPU {gpu.index}: {gpu.strain}" for gpu in gpus if gpu.strain][:_SHOWN]
    if words:
        return "on its host " + "; ".join(words)
    hot = [g for g in gpus if g.temperature_celsius is not None and g.temperature_celsius >= _HOT]
    return ", ".join(f"GPU {g.index} at {g.temperature_celsius:.0f} °C" for g in hot[:_SHOWN])


def _say(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
