"""Write options.md from the options' own declarations: python docs/write_options.py (a test sees to it that this was done)."""

from pathlib import Path

from minivllm.config import AsyncEngineArgs
from minivllm.config.option import Option, options_of

HEAD = """\
# Options

Each option is a flag of `minivllm serve`, a keyword of `LLM(...)`, `EngineArgs(...)` and `AsyncEngineArgs(...)` (with
underscores: `max_model_len`), and a line of a `--config` file. A switch `--x` has an opposite `--no-x`. Numbers may have a
unit: 12k is 12,000, 12K is 12,288, 4GiB is 4 · 2³⁰. The options under *Server* mean nothing to `LLM(...)`.

This page is written by `docs/write_options.py`.
"""
ENVIRONMENT = """
## Environment

| variable | meaning |
|---|---|
| `MINIVLLM_API_KEY` | keys that clients must send, separated by commas; `--api-key` comes before it |
| `MINIVLLM_ADMIN_API_KEY` | the same for the requests of everyone; `--admin-api-key` comes before it |
| `MINIVLLM_CPU_THREADS` | default of `--cpu-threads` |
| `MINIVLLM_LOGGING_LEVEL` | DEBUG, INFO (default), WARNING, ERROR, CRITICAL or OFF |
| `MINIVLLM_NO_EXT` | `1` while installing: do not compile the CPU kernels; later: do not use them |
| `HF_HOME`, `HF_TOKEN`, `HF_HUB_OFFLINE` | huggingface_hub's own: where models are kept, key for private ones, ask nobody |
"""


def text() -> str:
    parts = [HEAD]
    for section in AsyncEngineArgs.sections:
        rows = "\n".join(row(option) for option in options_of(section))
        parts.append(f"\n## {section.__doc__}\n\n| flag | values | default | meaning |\n|---|---|---|---|\n{rows}\n")
    return "".join(parts) + ENVIRONMENT


def row(option: Option) -> str:
    values = " ".join(f"`{choice}`" for choice in option.choices) or KINDS[option.type] + (", `auto`" if option.auto else "")
    unset = option.default in (None, "", -1, (), {}) or "Default:" in option.help
    default = "" if unset else f"`{str(option.default).lower() if option.type is bool else option.default}`"
    flags = f"`{option.flag}`" + (f", `{option.short}`" if option.short else "")
    return f"| {flags} | {values} | {default} | {option.help} |"


KINDS = {str: "text", int: "integer", float: "number", bool: "switch", dict: "JSON", tuple: "one or more"}

if __name__ == "__main__":
    Path(__file__).with_name("options.md").write_text(text())
