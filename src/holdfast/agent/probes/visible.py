"""Choose which of a machine's devices this host offers, by the variables of a scheduler or shell.
Pure.

VISIBLE-1  Devices that the agent's own environment leaves out belong to other work, and no job gets
          them. A word that names no device ends its list, as it does for CUDA.
VISIBLE-2  A list is not applied if the machine shows no more devices than the list names, because
          inside a container or a Slurm job with confined devices the driver shows only these
          devices, and numbers them anew.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.gpus import Gpu

_NONE = frozenset({"", "none", "void", "nodevfiles", "-1"})
# Variables of each vendor's own runtime, in order: HIP numbers the devices that ROCR leaves.
_RUNTIMES = {
    "nvidia": (("CUDA_VISIBLE_DEVICES",),),
    "amd": (
        ("ROCR_VISIBLE_DEVICES",),
        ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    ),
}
# Variables of schedulers and container runtimes, by the machine's own numbers (VISIBLE-2).
_SCHEDULERS = ("NVIDIA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_MIG = re.compile(r"MIG-[A-Za-z0-9/-]+")
_MIG_FROM = 512


class VisibleGpus(msgspec.Struct, frozen=True):
    """The devices to offer. said: a sentence on the devices that are left out; "" if none are."""

    gpus: list[Gpu]
    said: str = ""


def choose_visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> VisibleGpus:
    """Return the devices that the agent's environment leaves to this host (VISIBLE-1,
    VISIBLE-2)."""
    found: list[Gpu] = []
    told: list[str] = []
    for vendor, steps in _RUNTIMES.items():
        mine = [gpu for gpu in gpus if gpu.vendor == vendor]
        named = False
        for names in steps:
            name = next((name for name in names if name in environ), None)
            if name is not None and mine:
                mine, named = _follow(mine, environ[name]), True
                told.append(f"{name}={environ[name]}")
        for name in _SCHEDULERS if not named else ():
            words = _split(environ.get(name, "all"))
            if words == ["all"] or len(words) >= len(mine):
                continue
            chosen = _follow(mine, environ[name])
            if chosen or not words:
                mine = chosen
                told.append(f"{name}={environ[name]}")
                break
        found += mine
    found += [gpu for gpu in gpus if gpu.vendor not in _RUNTIMES]
    left = [gpu.index for gpu in gpus if all(gpu.index != kept.index for kept in found)]
    if not left:
        return VisibleGpus(found)
    offers = ", ".join(gpu.word or str(gpu.index) for gpu in found) or "none"
    return VisibleGpus(
        found,
        f"of this machine's {len(gpus)} GPUs this host offers {offers}, because its environment says "
        f"{' and '.join(dict.fromkeys(told))}",
    )


def declare_visible(count: int, environ: Mapping[str, str]) -> VisibleGpus:
    """Return `count` declared devices. If the environment names devices, they are chosen from
    its list. An empty list hides the devices that a driver shows, but none that an operator
    declares."""
    plain = [Gpu(index=index, vendor="declared") for index in range(count)]
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", *_SCHEDULERS)
    name = next((n for n in names if _split(environ.get(n, "all")) not in ([], ["all"])), None)
    if name is None or not count:
        return VisibleGpus(plain)
    found: list[Gpu] = []
    for place, word in enumerate(_split(environ[name])[:count]):
        if word.isdecimal() and int(word) <= 1023:
            found.append(Gpu(index=int(word), vendor="declared"))
        elif word.isdecimal():
            break
        else:
            found.append(Gpu(index=_MIG_FROM + place, uuid=word, word=word, vendor="declared"))
    if [gpu.index for gpu in found] == [gpu.index for gpu in plain]:
        return VisibleGpus(plain)
    offers = ", ".join(gpu.word or str(gpu.index) for gpu in found) or "none"
    return VisibleGpus(
        found,
        f"of {count} declared GPU{'s' * (count != 1)} this host offers {offers}, because its "
        f"environment says {name}={environ[name]}",
    )


def _split(value: str) -> list[str]:
    words = [word.strip() for word in value.split(",")]
    return [] if words[0].lower() in _NONE else [word for word in words if word]


def _follow(gpus: Sequence[Gpu], value: str) -> list[Gpu]:
    """Return the devices that a list names: by place, by UUID or its beginning, or a MIG part. A
    word that names no device, or names one again, ends the list."""
    found: list[Gpu] = []
    for place, word in enumerate(_split(value)):
        if word.lower() == "all":
            return list(gpus)
        gpu = _find(gpus, word, place)
        if gpu is None or any(gpu.index == other.index for other in found):
            break
        found.append(gpu)
    return found


def _find(gpus: Sequence[Gpu], word: str, place: int) -> Gpu | None:
    if word.isdecimal():
        return gpus[int(word)] if int(word) < len(gpus) else None
    if _MIG.fullmatch(word):
        # The part's size is not known here; a job finds the part by its own name.
        return Gpu(index=_MIG_FROM + place, uuid=word, word=word)
    alike = [gpu for gpu in gpus if gpu.uuid and gpu.uuid.startswith(word)]
    return alike[0] if len(alike) == 1 else None
