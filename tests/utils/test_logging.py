"""The form of log lines, and the level."""

import re

import pytest

from minivllm.utils.logging import get_logger, set_level


def test_line(capsys: pytest.CaptureFixture[str]) -> None:
    logger = get_logger("minivllm.core.startup")
    set_level("INFO")
    logger.info("KV cache: %d blocks", 5)
    logger.debug("not shown")
    assert re.fullmatch(r"INFO \d\d:\d\d:\d\d \[startup\] KV cache: 5 blocks\n", capsys.readouterr().err)


def test_level(capsys: pytest.CaptureFixture[str]) -> None:
    logger = get_logger("elsewhere")
    try:
        set_level("OFF")
        logger.critical("nothing")
        set_level("DEBUG")
        logger.debug("something")
    finally:
        set_level("INFO")
    assert capsys.readouterr().err.endswith("[elsewhere] something\n")
