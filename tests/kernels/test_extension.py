"""The compiled extension is there wherever it could be built: a compile error lets the install pass, but not the tests."""

import os
import shutil

import pytest

from minivllm.kernels import extension_error


@pytest.mark.skipif(bool(os.environ.get("MINIVLLM_NO_EXT")), reason="MINIVLLM_NO_EXT is set")
@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler")
def test_the_extension_is_built() -> None:
    assert extension_error() is None
