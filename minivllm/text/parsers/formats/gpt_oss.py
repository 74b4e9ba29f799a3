"""gpt-oss: messages with channels; `channels` reads them."""

from minivllm.text.parsers.channels import MARKS, make_reader
from minivllm.text.parsers.format import Format, Layout, Reasoning

GPT_OSS = Format(
    names=("gpt_oss", "openai", "openai_gptoss"),
    make_reader=make_reader,
    own_marks=MARKS,
    layout=Layout(
        call=("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""),
        other_call=(" to=functions.", "<|channel|>commentary <|constrain|>json<|message|>", ""),
        parallel=False,
        answer="<|channel|>final<|message|>",
        messages=tuple((f"<|channel|>{name}<|message|>", "<|end|><|start|>assistant") for name in ("analysis", "commentary")),
    ),
    reasoning=Reasoning(starts=("<|channel|>analysis<|message|>",), ends=("<|end|>",), gate="<|end|><|start|>assistant"),
    seen_in=("<|channel|>",),
)
