"""Digests name contents: the same everywhere, different for anything that differs."""

import subprocess
import sys

from minivllm.core.kv_cache.block_hash import BlockHasher, root_digest

PROGRAM = """
from minivllm.core.kv_cache.block_hash import BlockHasher, root_digest
print(BlockHasher(2).digest(root_digest(("salt", "é")), [1, 2**32 - 1]).hex())
"""


def test_digests_do_not_depend_on_the_process():
    here = BlockHasher(2).digest(root_digest(("salt", "é")), [1, 2**32 - 1]).hex()
    there = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout.strip()
    assert there == here == "f50ca79ca0698adc5d56a5dea1c6510656d0b8dfb6e305c3e48d590980c6d941"


def test_everything_that_matters_changes_the_digest():
    hasher = BlockHasher(2)
    root = root_digest()
    digests = {
        hasher.digest(root, [1, 2]),
        hasher.digest(root, [2, 1]),
        hasher.digest(root, [1, 258]),
        hasher.digest(root_digest(("salt", "a")), [1, 2]),
        hasher.digest(root_digest(("salt", "b")), [1, 2]),
        hasher.digest(hasher.digest(root, [1, 2]), [1, 2]),
    }
    assert len(digests) == 6


def test_keys_cannot_be_shifted_into_each_other():
    assert root_digest(("ab", "c")) != root_digest(("a", "bc")) != root_digest(("abc",))
    assert root_digest(("",)) != root_digest(())
