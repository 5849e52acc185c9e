"""The app of `test_models`: two models, each of which takes more than half of the card."""

from __future__ import annotations

import os
import time

import holdfast

GIB = 1 << 30
SHARE_GB = float(os.environ.get("MODEL_GB", "1"))


def take(value: int) -> tuple[float, object]:
    """Take the model's memory, filled with a value; the seconds that it took."""
    import torch

    began = time.monotonic()
    weights = torch.full((int(SHARE_GB * GIB),), value, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    return time.monotonic() - began, weights


@holdfast.model("left", vram_gb=SHARE_GB)
def left() -> tuple[float, object]:
    return take(1)


@holdfast.model("right", vram_gb=SHARE_GB)
def right() -> tuple[float, object]:
    return take(2)


def look(model: tuple[float, object]) -> dict[str, float]:
    """What a call sees of the model and of the card."""
    import torch

    free, total = torch.cuda.mem_get_info()
    weights = model[1]
    return {
        "pid": os.getpid(),
        "value": int(weights[-1]),  # type: ignore[index]  # a tensor
        "used": total - free,
        "total": total,
        "seconds": model[0],
    }


@holdfast.task(model=left)
def ask_left(number: int) -> dict[str, float]:
    return look(left())


@holdfast.task(model=right)
def ask_right(number: int) -> dict[str, float]:
    return look(right())


@holdfast.task(model=left, retry={"max_retries": 2, "retry_delay": 0})
def break_once(path: str) -> dict[str, float]:
    """Break the context of this process the first time: the device asserts."""
    import torch

    if not os.path.exists(path):
        open(path, "w").close()
        table = torch.randn(8, 4, device="cuda")
        print(table[torch.tensor([400], device="cuda")].sum().item())
    return look(left())


@holdfast.task(gpus=1, stall_timeout=2, watchdog_cap=2)
def wait_for_ever(path: str) -> str:
    """Wait in the driver for ever, the first time."""
    import torch

    from tests.gpu.programs import wait_for_a_word

    if os.path.exists(path):
        return "passed"
    open(path, "w").close()
    holdfast.beat(1, 2)
    word = torch.zeros(16, dtype=torch.int32, device="cuda")
    wait_for_a_word(word.data_ptr())
    torch.cuda.synchronize()
    return "never"
