"""`StopStrings`: find stop strings in a growing text, across token borders, and hold back what may become one."""


class StopStrings:
    """Of several matches the one that is complete first wins, so the result does not depend on how the text was cut.

    `feed` returns text that is safe to show. After a match, `matched` is the stop string and nothing more may be fed.
    """

    def __init__(self, stops: list[str], include_in_output: bool):
        self._stops = stops
        self._include = include_in_output
        self._held = ""  # the end of the text so far, where it is the beginning of a stop string
        self.matched: str | None = None

    def feed(self, text: str, search: bool = True) -> str:
        """Add text; only matches that end in it count, and only if `search` (false while min_tokens is not reached)."""
        if not text:
            return ""
        num_old = len(self._held)
        text = self._held + text
        found = self._find(text, num_old) if search else None
        if found:
            start, end, self.matched = found
            self._held = ""
            return text[: end if self._include else start]
        num_held = self._partial(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def finish(self) -> str:
        """The text held back; the end came before a stop string was complete."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str, num_old: int) -> tuple[int, int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, num_old - len(stop) + 1))
            if start >= 0:
                end = start + len(stop)
                if best is None or (end, start) < (best[1], best[0]):
                    best = start, end, stop
        return best

    def _partial(self, text: str) -> int:
        longest = 0
        for stop in self._stops:
            at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while at >= 0 and len(text) - at > longest:
                if stop.startswith(text[at:]):
                    longest = len(text) - at
                at = text.find(stop[0], at + 1)
        return longest
