"""Tiles that were measured to be the best ones. Shapes that are not among them follow rules, in `launch` and `attention`."""

Key = tuple[str | int, ...]

# Lines as benchmarks/gpu/speed.py --sweep prints them:
#   ("parts",): programs for each multiprocessor among which keys are divided at least
#   ("decode", elements of a head, rows): keys of a tile, warps, stages
#   ("prompt", elements of a head): rows, keys of a tile, warps, stages
#   (kind of weight, rows of x, whether the weight has many rows): rows of the weight, columns, warps, stages
# They hold for bf16 and fp16, those of attention where scores are used as they are.
MEASURED: dict[Key, tuple[int, ...]] = {}
