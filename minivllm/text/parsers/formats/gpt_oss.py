"""gpt-oss: messages with channels; `channels` reads them."""

from minivllm.text.parsers.channels import ChannelCalls
from minivllm.text.parsers.format import Format, Layout, Reasoning

GPT_OSS = Format(
    names=("gpt_oss", "openai", "openai_gptoss"),
    calls=ChannelCalls(),
    layout=Layout(
        call=("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""),
        separator="<|call|><|start|>assistant",
    ),
    reasoning=Reasoning(starts=("<|channel|>analysis<|message|>",), ends=("<|end|>",)),
    seen_in=("<|channel|>",),
)
