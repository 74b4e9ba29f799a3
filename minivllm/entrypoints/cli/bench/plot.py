"""The picture of a load: how latencies are distributed, and tokens a second over time. matplotlib is loaded only for this."""

import importlib.util
from collections.abc import Mapping, Sequence

from minivllm.entrypoints.cli.bench.load import Outcome
from minivllm.errors import ConfigError

_SIZE = (11, 7)  # inches


def check_available() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'minivllm[bench]'", param="plot")


def draw_load(path: str, latencies: Mapping[str, Sequence[float]], outcomes: Sequence[Outcome]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots(2, 2).flat
    for axis, (name, unit) in zip(axes, (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "gap between chunks")), strict=False):
        values = sorted(latencies[name])
        axis.plot(values, [100 * (i + 1) / len(values) for i in range(len(values))])
        axis.set(xlabel=f"{unit}, ms", ylabel="% of them within", ylim=(0, 101))
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
    begin = min(o.start for o in outcomes)
    seconds = [int(stamp - begin) for o in outcomes for stamp in o.stamps]
    rate = [seconds.count(second) for second in range(max(seconds, default=0) + 1)]
    axes[3].step(range(len(rate)), rate, where="post")
    axes[3].set(xlabel="s since the first request", ylabel="chunks a second", ylim=(0, None))
    axes[3].grid(alpha=0.3)
    figure.savefig(path, dpi=120)
