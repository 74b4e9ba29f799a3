"""When a token ends a request, and what is said about it."""

import pytest
from fake_worker import make_request

from minivllm.core.kv_cache.manager import SequenceBlocks
from minivllm.core.scheduler.request import Request
from minivllm.core.scheduler.stopping import check_stop
from minivllm.messages.output import FinishReason

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("output", "max_length", "params", "expected"),
    [
        ([5], 99, {}, None),
        ([5, 2], 99, {}, (STOP, None)),
        ([5, 3], 99, {}, (STOP, None)),  # any of several EOS tokens
        ([2, 5], 99, {}, None),  # only the newest token counts
        ([2], 99, {"ignore_eos": True}, None),
        ([7], 99, {"stop_token_ids": [6, 7]}, (STOP, 7)),
        ([2], 99, {"stop_token_ids": [2]}, (STOP, None)),
        ([2], 99, {"stop_token_ids": [2], "ignore_eos": True}, (STOP, 2)),
        ([2], 99, {"min_tokens": 2}, None),
        ([7], 99, {"min_tokens": 2, "stop_token_ids": [7]}, None),
        ([5, 2], 99, {"min_tokens": 2}, (STOP, None)),
        ([5, 5], 5, {}, (LENGTH, None)),
        ([5, 2], 5, {}, (STOP, None)),  # EOS at the limit is a stop
        ([5, 2], 5, {"min_tokens": 9}, (LENGTH, None)),  # the model's length ends it even before min_tokens
    ],
)
def test_check_stop(output, max_length, params, expected):
    data = make_request("a", [1, 1, 2], eos=[2, 3], **{"max_tokens": 99, **params})
    request = Request(
        data=data, order=(0, 0.0, 0), max_length=max_length, blocks=SequenceBlocks(b""), tokens=[1, 1, 2, *output]
    )
    assert check_stop(request) == expected
