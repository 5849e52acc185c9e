"""Programs that use one GPU, in good ways and in bad: `python programs.py NAME ARGUMENTS`.

They run under a Python that has torch built with CUDA, as jobs of the tests in this folder.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import holdfast

GIB = 1 << 30
ATTEMPT = int(os.environ.get("HOLDFAST_ATTEMPT", "1"))
FOR_EVER = 1 << 62  # cycles of the GPU's clock: decades


def tell(**found: object) -> None:
    """Print a line of JSON for the test."""
    print("TOLD" + json.dumps(found), flush=True)


def multiply(seconds: float, size: int = 4096) -> int:
    """Keep the GPU busy; how many products it did."""
    matrix = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        torch.mm(matrix, matrix)
        torch.cuda.synchronize()
        count += 1
    return count


def spin_for_ever() -> None:
    """Start a kernel that never returns."""
    torch.cuda._sleep(FOR_EVER)


def wait_for_a_word(address: int) -> None:
    """Have the stream wait until memory holds a number that is never written there: an idle GPU, and a
    process that waits in the driver, as for a peer that never comes."""
    driver = ctypes.CDLL("libcuda.so.1")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    code = driver.cuStreamWaitValue32_v2(stream, ctypes.c_uint64(address), 12345, 1)  # equal
    assert code == 0, f"cuStreamWaitValue32: {code}"


def look() -> None:
    """Say how much memory is free before anything is taken."""
    free, total = torch.cuda.mem_get_info()
    tell(attempt=ATTEMPT, free=free, total=total, pid=os.getpid(), unix=time.time())


def begin() -> None:
    """Say that, and do a few steps with beats."""
    look()
    for step in range(1, 4):
        multiply(0.3)
        holdfast.beat(step, total=10)


def hang(how: str, gib: str, always: str = "once") -> None:
    """Work, beat, then hang: in a kernel that spins, or in the driver beside an idle GPU."""
    begin()
    if ATTEMPT > 1 and always == "once":
        tell(done=True)
        return
    held = torch.zeros(int(float(gib) * GIB), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    holdfast.beat(4, total=10)
    tell(hung_unix=time.time(), held=held.numel())
    if how == "spin":
        spin_for_ever()
    else:
        wait_for_a_word(held.data_ptr())
    torch.cuda.synchronize()


def hang_without_a_beat(how: str) -> None:
    """Hang like that, and never beat."""
    if ATTEMPT > 1:
        tell(done=True)
        return
    held = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    tell(hung_unix=time.time())
    if how == "spin":
        spin_for_ever()
    else:
        wait_for_a_word(held.data_ptr())
    torch.cuda.synchronize()


def load(gib: str, seconds: str) -> None:
    """Load a large model slowly, through pinned host memory, without a beat while it loads."""
    pieces, chunk = [], 256 << 20
    staging = torch.empty(chunk, dtype=torch.uint8, pin_memory=True)
    count = int(float(gib) * GIB) // chunk
    pause = float(seconds) / count
    began = time.monotonic()
    for number in range(count):
        staging.fill_(number % 251)
        pieces.append(staging.to("cuda", non_blocking=False))
        time.sleep(max(0.0, began + (number + 1) * pause - time.monotonic()))
    holdfast.beat(1, total=2)
    right = all(int(piece[-1]) == number % 251 for number, piece in enumerate(pieces))
    holdfast.beat(2, total=2)
    tell(loaded=len(pieces) * chunk, seconds=round(time.monotonic() - began, 2), right=right)


def work_slowly(seconds: str, busy_ms: str, pause_ms: str) -> None:
    """Work a little and wait a little, with one beat at the beginning."""
    begin()
    holdfast.beat(4, total=10)
    cycles = int(float(busy_ms) * 1.7e6)
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        torch.cuda._sleep(cycles)
        torch.cuda.synchronize()
        time.sleep(float(pause_ms) / 1000)
    tell(done=True)


def prepare_on_the_cpu(seconds: str) -> None:
    """Make batches on the CPU for long, beside an idle GPU, with one beat at the beginning."""
    begin()
    holdfast.beat(4, total=10)
    until, batches = time.monotonic() + float(seconds), 0
    with holdfast.section("prepare"):
        while time.monotonic() < until:
            torch.randn(32 << 20).sort()
            batches += 1
    tell(done=True, batches=batches)


def run_out_of_memory() -> None:
    """Take more memory than there is."""
    taken = []
    while True:
        taken.append(torch.zeros(4 * GIB, dtype=torch.uint8, device="cuda"))


class Beyond:
    """An array of the GPU that is far longer than its memory."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (1 << 38,),
            "typestr": "|u1",
            "version": 3,
        }


def read_out_of_bounds() -> None:
    """Read memory that is not there: an illegal memory access, and Xid 31 in the kernel's log."""
    begin()
    small = torch.zeros(1024, dtype=torch.uint8, device="cuda")
    beyond = torch.as_tensor(Beyond(small.data_ptr()), device="cuda")
    print(int(beyond[1 << 37 :: 1 << 20].sum()))


def fault_without_a_word() -> None:
    """Fault like that, and end without printing anything."""
    try:
        read_out_of_bounds()
    except RuntimeError:
        os._exit(3)


def assert_on_the_device() -> None:
    """Index past the end, which torch's kernels assert against."""
    begin()
    table = torch.randn(8, 4, device="cuda")
    picked = table[torch.tensor([1, 2, 400], device="cuda")]
    print(picked.sum().item())


def work_until_told(path: str, gib: str) -> None:
    """Hold memory and beat with real work until a file appears."""
    held = torch.zeros(int(float(gib) * GIB), dtype=torch.uint8, device="cuda")
    step = 0
    while not Path(path).exists():
        multiply(0.2)
        step += 1
        holdfast.beat(step)
        if step == 1:
            tell(held=held.numel(), pid=os.getpid())
    tell(steps=step)


def train(state: str, steps: str, pause: str, dies_at: str = "-1") -> None:
    """Train a small network with DistributedDataParallel over NCCL, from the newest checkpoint; at one
    step of the first run it kills itself."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    network = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 256)
    ).cuda()
    model = DistributedDataParallel(network, device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first, file = 0, Path(state) / "state.pt"
    if file.exists():
        saved = torch.load(file, weights_only=True)
        network.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    tell(attempt=ATTEMPT, first=first, pid=os.getpid())
    loss = torch.zeros(())
    for step in range(first, int(steps)):
        generator = torch.Generator("cuda").manual_seed(step)
        batch = torch.randn(64, 256, device="cuda", generator=generator)
        loss = (model(batch) - batch.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        words = {
            "step": step + 1,
            "model": network.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        torch.save(words, file.with_suffix(".part"))
        file.with_suffix(".part").replace(file)
        holdfast.beat(step + 1, total=int(steps))
        if step == int(dies_at) and first == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(float(pause))
    tell(loss=f"{loss.item():.9f}")
    dist.destroy_process_group()


def join(odd: str) -> None:
    """One rank of a collective over NCCL: the peer comes to the rendezvous, and not to the collective;
    or the only rank's collective waits behind a kernel that never returns."""
    import torch.distributed as dist

    from holdfast.supervisor import get_message_queue

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(0)
    eager = torch.device("cuda", 0) if odd == "absent at the start" and rank == 0 else None
    get_message_queue().send("here")
    dist.init_process_group("nccl", device_id=eager)

    def read_a_slow_disk() -> None:
        time.sleep(6000)

    def reduce_gradients(size: int) -> None:
        dist.all_reduce(torch.ones(size, device="cuda"))
        torch.cuda.synchronize()

    if world == 1:
        reduce_gradients(3)
        reduce_gradients(3)
    if odd.startswith("absent") and rank == 1:
        read_a_slow_disk()
    if odd == "behind a kernel":
        spin_for_ever()
    reduce_gradients(5)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
