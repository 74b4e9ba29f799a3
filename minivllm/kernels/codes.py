"""What the codes of weights in 4 or 8 bits stand for, where not for themselves."""

import torch

E4M3_UNIT = 2.0**-8  # of the numbers below: scales beside the numbers themselves would be too small for 16 bits

_FP4 = torch.tensor([0, 0.0625, 8, 12, 4, 6, 2, 3]) / 12
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])

CODES = {
    # Quantiles of a normal distribution (Dettmers et al. 2023), as bitsandbytes has them.
    "nf4": torch.tensor(
        [
            -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
            -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
            0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
        ]
    ),
    "fp4": torch.cat((_FP4, -_FP4)),  # of bitsandbytes
    "e2m1": torch.cat((_E2M1, -_E2M1)),
    "e4m3": torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float() * E4M3_UNIT,
}  # fmt: skip
