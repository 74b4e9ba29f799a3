"""The project's loggers: one handler on stderr, lines as `INFO 12:00:00 [name] text`. Used everywhere."""

import logging
import sys

ROOT = "minivllm"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Looks sys.stderr up at each line, so that a redirected stderr (pytest, notebooks) is followed."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self):  # type: ignore[no-untyped-def]
        return sys.stderr


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.short_name = record.name.removeprefix(f"{ROOT}.").rpartition(".")[2]
        return super().format(record)


def get_logger(name: str) -> logging.Logger:
    """The logger for a module; pass `__name__`."""
    root = logging.getLogger(ROOT)
    if not root.handlers:
        handler = _StderrHandler()
        handler.setFormatter(_Formatter("%(levelname)s %(asctime)s [%(short_name)s] %(message)s", "%H:%M:%S"))
        root.addHandler(handler)
        root.propagate = False
        if root.level == logging.NOTSET:
            root.setLevel(logging.INFO)
    return logging.getLogger(name if name.startswith(ROOT) else f"{ROOT}.{name}")


def set_level(level: str) -> None:
    """`level` is one of LEVELS, or OFF."""
    logging.getLogger(ROOT).setLevel(logging.CRITICAL + 1 if level == "OFF" else level)


def only_warnings() -> None:
    """Of several processes that do the same one speaks for all; the others say what goes wrong, if that is asked for."""
    root = logging.getLogger(ROOT)
    root.setLevel(max(logging.WARNING, root.level))
