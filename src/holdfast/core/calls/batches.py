"""choose_want(…) → how many more calls an executor can take now. Pure.

WANT-1  A batch is about `BATCH_SECONDS` of work. Longer batches would keep calls from other
        executors
         and waste more when their executor dies; shorter ones would leave a slot idle for the time
         of a round trip.
WANT-2  At most two batches are in flight: one runs while the next is fetched. Calls longer than a
         batch are fetched one at a time; one more is fetched ahead if the calls are so short that
         the wait for the next would be noticed. Executors with GPUs fetch none ahead, because
         another executor may be free for that call, and a GPU's memory is rarely shared.
"""

MAX_BATCH_CALLS = 1000
BATCH_SECONDS = 0.05
AHEAD_SECONDS = 1.0


def choose_want(mean_seconds: float, in_hand: int, gpus: int) -> int:
    """Return how many calls to ask for.

    mean_seconds: mean duration of the executor's recent calls, 0 before the first has ended.
    in_hand: number of calls that the executor has received and not ended, the running one included.
    gpus: number of GPUs of the executor.
    """
    if mean_seconds <= 0:
        return 0 if in_hand else 1  # the duration of a call is not known yet
    if mean_seconds <= BATCH_SECONDS:
        batch = int(min(MAX_BATCH_CALLS, BATCH_SECONDS / mean_seconds))
        return batch if in_hand <= batch else 0
    ahead = mean_seconds < AHEAD_SECONDS and not gpus
    return 1 if in_hand <= ahead else 0
