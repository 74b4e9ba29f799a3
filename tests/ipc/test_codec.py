"""Every message survives the way through the codec."""

import io

import msgspec
import pytest

from minivllm.ipc.codec import decode_input, decode_output, encode
from minivllm.ipc.frames import read_frame, write_frame
from minivllm.messages.output import CallReply, EngineDead, EngineReady, FinishReason, TokenOutput, TokenOutputs
from minivllm.messages.request import AbortRequests, AddRequests, CallMethod, EngineRequest
from minivllm.messages.sampling_params import SamplingParams
from minivllm.messages.stats import SchedulerStats
from minivllm.messages.step import TokenLogprobs

REQUEST = EngineRequest(
    request_id="a",
    prompt_token_ids=[1, 2, 70_000],
    sampling_params=SamplingParams(temperature=0.0, max_tokens=3, seed=-(2**63), logit_bias={5: -1.5}, stop=["x"]),
    eos_token_ids=[2],
    bad_words_token_ids=[[4, 5]],
    arrival_time=1.25,
    priority=-1,
    cache_salt="salt",
)

INPUTS = [
    AddRequests(requests=[REQUEST]),
    AbortRequests(request_ids=["a", "b"]),
    CallMethod(call_id=3, method="reset_prefix_cache", args=[1, "x", {"k": [None]}]),
]

OUTPUTS = [
    TokenOutputs(
        outputs=[
            TokenOutput(request_id="a", token_ids=[7], logprobs=[TokenLogprobs([7, 8], [-0.5, -1.0], 1)]),
            TokenOutput(request_id="b", token_ids=[], finish_reason=FinishReason.ERROR, error="NaN"),
        ],
        stats=SchedulerStats(num_running=2, kv_cache_usage=0.5),
        time=12.5,
    ),
    TokenOutputs(outputs=[], stats=None, time=0.0),
    CallReply(call_id=3, result={"a": 1}),
    CallReply(call_id=4, error="no such method"),
    EngineReady(num_blocks=10, block_size=16, max_model_len=64, pid=9),
    EngineDead(message="no memory", is_config=True),
]


@pytest.mark.parametrize("message", INPUTS, ids=lambda m: type(m).__name__)
def test_input_round_trip(message):
    assert decode_input(encode(message)) == message


@pytest.mark.parametrize("message", OUTPUTS, ids=lambda m: type(m).__name__)
def test_output_round_trip(message):
    assert decode_output(encode(message)) == message


def test_messages_of_the_other_direction_are_refused():
    with pytest.raises(msgspec.DecodeError):
        decode_input(encode(EngineDead(message="x")))
    with pytest.raises(msgspec.DecodeError):
        decode_output(encode(AbortRequests(request_ids=[])))


def test_a_result_without_msgpack_form_is_a_type_error():
    with pytest.raises(TypeError):
        encode(CallReply(call_id=1, result=object()))


def test_frames_keep_order_and_notice_the_end():
    pipe = io.BytesIO()
    write_frame(pipe, b"one")
    write_frame(pipe, b"")
    pipe.write(b"\0\0")
    pipe.seek(0)
    assert [read_frame(pipe), read_frame(pipe)] == [b"one", b""]
    with pytest.raises(EOFError):
        read_frame(pipe)
