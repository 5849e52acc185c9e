"""Plain PyTorch: a loop that beats, and state that outlives the attempt.

state = load()                      # None in the first attempt
if state: model.load_state_dict(state["model"]); ...
for batch in run_steps(loader, lambda: {"model": model.state_dict(), ...}, first=done):
    ...
"""

from __future__ import annotations

import hashlib
import io
import time

import torch

from holdfast.integrations.draining import DrainFlag
from holdfast.work import beat, checkpoint, section
from holdfast.work.beats import add_wait

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, TypeVar

    T = TypeVar("T")


def run_steps(
    items: Iterable[T],
    state: Callable[[], Any],
    *,
    first: int = 0,
    total: int | None = None,
    every_seconds: float = 600.0,
) -> Iterator[T]:
    """Yield the items and beat after each. Every `every_seconds`, and when the attempt is told to
    stop, save `state()` with the number of steps done; after a stop the process then ends.

    first: the number of steps done in earlier attempts, added to the step of beats and checkpoints.
    """
    drain = DrainFlag()
    drain.watch()
    saved_at = time.monotonic()
    for step, item in enumerate(items, first + 1):
        yield item
        beat(step, total)
        now = time.monotonic()
        if drain.requested or now - saved_at >= every_seconds:
            saved_at = now
            save(state(), step)
        if drain.requested:
            drain.end()


class _Waits:
    """Measures, step by step, the time from this rank's last gradient to the end of its reduction:
    on a GPU by two events of the streams, which are read a step later, so that nothing waits for them."""

    def __init__(self) -> None:
        self._pending: list[tuple[Any, Any]] = []

    def reduce(self, group: Any, bucket: Any) -> Any:
        """Reduce one bucket of gradients as DistributedDataParallel does by itself."""
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        if not bucket.is_last():
            return allreduce_hook(group, bucket)
        if bucket.buffer().is_cuda:
            return self._time_streams(allreduce_hook, group, bucket)
        began = time.monotonic()

        def tell(done: Any) -> Any:
            add_wait(time.monotonic() - began)
            return done.value()

        return allreduce_hook(group, bucket).then(tell)

    def _time_streams(self, reduce: Any, group: Any, bucket: Any) -> Any:
        while self._pending and self._pending[0][1].query():
            began, ended = self._pending.pop(0)
            add_wait(began.elapsed_time(ended) / 1000.0)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()

        def tell(done: Any) -> Any:
            ended.record()  # in the stream in which the reduction was
            self._pending.append((began, ended))
            return done.value()

        return reduce(group, bucket).then(tell)


def tell_waits(model: Any) -> None:
    """Have beats tell how long each step of a `DistributedDataParallel` model waited for the
    gradients of other ranks, so that the rank that they wait for is found. Call it once, after the
    model is wrapped; it takes the place of a communication hook of one's own."""
    waits = _Waits()
    # A lambda, because the model reads a hook's annotations and wants its own types there.
    model.register_comm_hook(None, lambda group, bucket: waits.reduce(group, bucket))


def checksum(tensors: Iterable[Any]) -> str:
    """Return a checksum of tensors that all ranks must have alike, as a replica's weights or
    reduced gradients: `beat(step, checksum=checksum(model.parameters()))`. The bits count: two sums
    that differ in one rounding differ. It reads every tensor, so call it every hundred steps or so."""
    sums = [_sum_bits(tensor) for tensor in tensors]
    text = ",".join(str(int(one)) for one in sums)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _sum_bits(tensor: Any) -> Any:
    """Return a number of all bits of a tensor and their places, computed on its device."""
    raw = tensor.detach().contiguous().view(torch.uint8).flatten().to(torch.int64)
    places = torch.arange(1, raw.numel() + 1, device=raw.device, dtype=torch.int64)
    return ((raw + 1) * (places % 65_521 + 1)).sum()


def save(state: Any, step: int) -> bool:
    """Leave a state that `torch.save` can write for the next attempt; return whether it was
    kept."""
    with section(checkpoint.NAME):
        buffer = io.BytesIO()
        torch.save(state, buffer)
        return checkpoint.save(buffer.getbuffer(), step)


def load(map_location: Any = "cpu") -> Any:
    """Return the state that an earlier attempt saved, or None. Only tensors and plain values are
    loaded: nothing is unpickled that could run code."""
    path = checkpoint.path()
    return None if path is None else torch.load(path, map_location, weights_only=True)
