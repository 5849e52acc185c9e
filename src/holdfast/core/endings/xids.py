"""Xid codes, which NVIDIA's driver writes to the kernel log when a GPU fails, and the side at
fault.

Facts from NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the
Xid Catalog", for Ampere and newer). `blame` follows its column of immediate actions:

    hardware     the GPU must be reset, the machine restarted or looked at: the task is innocent, the host is suspect
    application  the program did it, or only the program must be restarted; the device goes on
    notice       needs no action at once, or only accompanies another code: explains no failure by itself
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from holdfast.core.causes import Cause


class Blame(StrEnum):
    """The side at fault in an Xid."""

    HARDWARE = "hardware"
    APPLICATION = "application"
    NOTICE = "notice"


class Xid(NamedTuple):
    """One Xid code. action: advice for the operator, empty where restarting the program is
    enough."""

    code: int
    name: str
    blame: Blame
    action: str = ""

    @property
    def cause(self) -> Cause:
        """Return the cause of a failure that this code explains."""
        return Cause.GPU_FAULT if self.blame is Blame.HARDWARE else Cause.NONZERO_EXIT

    def __str__(self) -> str:
        return f"Xid {self.code}: {self.name}" + (f" ({self.action})" if self.action else "")


_RESET = "reset the GPU"
_RESTART = "restart the machine"
_LINKS = "check the NVLink cables and switches, then reset the GPU"

_HARDWARE: Mapping[int, tuple[str, str]] = {
    46: ("the GPU stopped processing", _RESET),
    48: ("double-bit ECC error", _RESET),
    54: ("auxiliary power is not connected to the GPU", "look at the machine's power cables"),
    62: ("the GPU's internal micro-controller halted", _RESET),
    64: ("remapping or retiring bad GPU memory failed", _RESET),
    74: ("NVLink error", _LINKS),
    79: ("the GPU has fallen off the bus", _RESTART),
    94: (
        "contained GPU memory error: an uncorrectable ECC error in this task's memory",
        "reset the GPU when it is idle",
    ),
    95: ("uncontained GPU memory error", _RESET),
    109: ("context switch timeout", _RESET),
    110: ("security fault", _RESET),
    119: ("the GPU's system processor (GSP) does not answer", _RESET),
    120: ("the GPU's system processor (GSP) failed", _RESET),
    136: ("an NVLink could not be trained", _RESET),
    140: ("unrecovered ECC error", _RESET),
    143: ("the GPU could not be initialised", _RESET),
    144: ("NVLink error (SAW)", _LINKS),
    145: ("NVLink error (RLW)", _LINKS),
    146: ("NVLink error (TLW)", _LINKS),
    147: ("NVLink error (TREX)", _LINKS),
    148: ("NVLink error (NVLPW_CTRL)", _LINKS),
    149: ("NVLink error (NETIR)", _LINKS),
    150: ("NVLink error (MSE)", _LINKS),
    151: ("key rotation error", "restart the virtual machine"),
    155: ("NVLink error found by software", _RESET),
    156: ("a part of the GPU was retired", _RESET),
    158: ("fatal timeout of the GPU", _RESET),
    167: ("fatal timeout on PCIe", _RESTART),
    171: ("uncorrectable error in GPU memory (DRAM)", _RESET),
    172: ("uncorrectable error in GPU memory (SRAM)", _RESET),
}

_APPLICATION: Mapping[int, str] = {
    8: "the GPU stopped processing",
    11: "invalid or corrupted push buffer stream",
    13: "graphics engine exception, most often an access out of bounds or an illegal instruction in a kernel",
    25: "invalid or illegal push buffer stream",
    31: "GPU memory page fault: a kernel used an address that is not mapped",
    32: "invalid or corrupted push buffer stream",
    39: "copy engine exception",
    40: "copy engine exception",
    41: "copy engine exception",
    43: "the GPU stopped processing this program after its own fault",
    60: "video processor exception",
    68: "video decoder exception",
    69: "graphics engine class error",
    80: "corrupted data was sent to the GPU",
    82: "JPEG decoder error",
    83: "video decoder error",
    84: "video decoder error",
    86: "optical flow engine exception",
    88: "video decoder error",
    89: "video decoder error",
    **dict.fromkeys((70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine error"),
    **dict.fromkeys(range(96, 99), "video decoder error"),
    **dict.fromkeys(range(99, 106), "JPEG decoder error"),
    139: "optical flow engine error",
    142: "video encoder error",
}

_NOTICE: Mapping[int, str] = {
    14: "a made-up error, for tests",
    37: "driver firmware error",
    38: "driver firmware watchdog",
    44: "fault during a context switch",
    45: "clean-up after an earlier error, or because the program was killed",
    63: "bad GPU memory was remapped or retired; it takes effect at the next reset",
    66: "illegal access by the driver",
    67: "illegal access by the driver",
    78: "a virtual GPU could not start: the versions of its host and guest drivers do not fit",
    92: "high rate of single-bit ECC errors",
    93: "the GPU's information ROM is written too often",
    106: "a test message",
    107: "a test message",
    121: "error on the chip-to-chip link, corrected",
    137: "NVLink privilege error, raised by a fault elsewhere",
    141: "CUDA fast path error",
    152: "DLA memory error",
    153: "DLA timeout",
    154: "the driver's advice on how to recover changed",
    157: "a part of the GPU could not be retired",
    159: "non-data error on the chip-to-chip link",
    160: "a memory channel was retired",
    161: "a memory channel could not be retired",
}

XIDS: Mapping[int, Xid] = {
    **{code: Xid(code, name, Blame.HARDWARE, action) for code, (name, action) in _HARDWARE.items()},
    **{code: Xid(code, name, Blame.APPLICATION) for code, name in _APPLICATION.items()},
    **{code: Xid(code, name, Blame.NOTICE) for code, name in _NOTICE.items()},
}
"""Every code that the catalogue gives a meaning to."""


def find_xid(codes: Iterable[int], blame: Blame) -> Xid | None:
    """Return the first of `codes` in the catalogue with this blame, or None."""
    return next((XIDS[code] for code in codes if code in XIDS and XIDS[code].blame is blame), None)


class XidLine(NamedTuple):
    """An Xid in a line of the kernel log. pci: the GPU's address, as (domain, bus, device)."""

    pci: tuple[int, int, int]
    code: int


# NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.
# NVRM: Xid (0000:03:00): 14, Channel 00000001       (drivers before 310)
_LINE = re.compile(
    r"\bNVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.\d)?\): "
    r"(\d{1,4})\b"
)


def parse_xid_line(line: str) -> XidLine | None:
    """Read a line as the driver prints it; None where it is another."""
    found = _LINE.search(line)
    if found is None:
        return None
    domain, bus, device = (int(found[group], 16) for group in (1, 2, 3))
    return XidLine((domain, bus, device), int(found[4]))


def find_xid_lines(text: str) -> Sequence[tuple[int, XidLine]]:
    """Return every line with an Xid in `text`, with its position."""
    lines = [(found.start(), parse_xid_line(found[0])) for found in _LINE.finditer(text)]
    return [(at, line) for at, line in lines if line is not None]


# amdgpu 0000:03:00.0: amdgpu: GPU reset begin!. Source:  1
# amdgpu 0000:03:00.0: amdgpu: GPU Recovery Failed: -62
# A ring's time-out is no such line: the driver often recovers from it without a reset.
_AMD_LINE = re.compile(
    r"\bamdgpu ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d): (?:amdgpu: )?"
    r"(?:GPU reset begin|GPU reset(?:\(\d+\))? failed|GPU Recovery Failed|GPU hang|"
    r"The cp might be in an unrecoverable state|device lost from bus)"
)


def parse_amd_line(line: str) -> tuple[int, int, int] | None:
    """Return the PCI address of the device in a line in which amdgpu reports a hang or reset; None
    for other lines."""
    found = _AMD_LINE.search(line)
    return None if found is None else parse_pci(found[1])


def parse_pci(address: str) -> tuple[int, int, int] | None:
    """Read "00000000:3B:00.0" as (domain, bus, device), None where it is no PCI address."""
    found = re.fullmatch(
        r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?", address.strip()
    )
    return None if found is None else (int(found[1], 16), int(found[2], 16), int(found[3], 16))


def leave_out_others(text: str, devices: Sequence[str] | None) -> str:
    """Return the text without lines that name other devices than those that the task held; none of
    it where the task held no device. None: the devices are not known."""
    if devices is None:
        return text
    held = {parse_pci(device) for device in devices}
    lines = text.splitlines() if held else ()
    named = ((line, set(map(parse_pci, _PCI.findall(line)))) for line in lines)
    return "\n".join(line for line, pcis in named if not pcis or pcis & held)


_PCI = re.compile(r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?\b")
