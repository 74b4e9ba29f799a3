"""The interpreter computes as a device would, before any of the tests is imported."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import interpreter

interpreter.repair()
torch.set_num_threads(1)
