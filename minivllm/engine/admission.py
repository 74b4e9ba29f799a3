"""`Admission`: may one more request queue up, and if not, when is it worth coming back? Asked by `AsyncLLMEngine`."""

from collections import deque
from time import monotonic

from minivllm.errors import OverloadedError

WINDOW = 64  # finished sequences from which the present rate is estimated
LEAST_SECONDS, MOST_SECONDS = 1.0, 60.0
UNKNOWN_SECONDS = 5.0  # nothing has finished lately
MESSAGE = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."


class Admission:
    def __init__(self, max_queued: int | None, max_running: int):
        self._max_queued = max_queued
        self._max_running = max_running
        self._finish_times: deque[float] = deque(maxlen=WINDOW)

    def check(self, num_new: int, num_open: int, num_waiting: int) -> None:
        """`OverloadedError` if more than `max_queued` sequences would wait.

        `num_open`: sequences in the engine now; `num_waiting`: of these, by the core's last figures.
        """
        if self._max_queued is None:
            return
        # Waiting for a seat is known at once; waiting for KV blocks is known from the core's last figures.
        for_seats = num_open + num_new - self._max_running
        waiting = min(num_waiting, num_open)
        for_blocks = waiting + num_new if waiting else 0
        if max(for_seats, for_blocks) > self._max_queued:
            raise OverloadedError(MESSAGE, retry_after=self.retry_after(max(waiting, num_open - self._max_running, 1)))

    def record_finished(self, count: int) -> None:
        now = monotonic()
        self._finish_times.extend([now] * min(count, WINDOW))

    def retry_after(self, num_waiting: int) -> float:
        """Seconds until the queue has moved up, by the rate at which sequences finished lately."""
        times, now = self._finish_times, monotonic()
        while times and now - times[0] > MOST_SECONDS:  # what was long ago says nothing of now
            times.popleft()
        seconds = now - times[0] if times else 0.0
        estimate = num_waiting * seconds / len(times) if times else UNKNOWN_SECONDS
        return min(max(estimate, LEAST_SECONDS), MOST_SECONDS)
