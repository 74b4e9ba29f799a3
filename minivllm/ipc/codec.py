"""Messages ↔ msgpack bytes. Used at both ends of the sockets between engine and core."""

import msgspec

from minivllm.messages.output import CoreOutput
from minivllm.messages.request import CoreInput

_encoder = msgspec.msgpack.Encoder()
_input_decoder = msgspec.msgpack.Decoder(CoreInput)
_output_decoder = msgspec.msgpack.Decoder(CoreOutput)


def encode(message: CoreInput | CoreOutput) -> bytes:
    """TypeError if a `CallMethod` argument or a `CallReply` result has no msgpack form."""
    return _encoder.encode(message)


def decode_input(data: bytes) -> CoreInput:
    """What the engine sent; msgspec.DecodeError if it is not one of its messages."""
    return _input_decoder.decode(data)


def decode_output(data: bytes) -> CoreOutput:
    """What the core sent; msgspec.DecodeError if it is not one of its messages."""
    return _output_decoder.decode(data)
