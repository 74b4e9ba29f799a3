"""The interpreter must be chosen before triton is imported: these tests run in a process of their own (test_interpreted.py)."""

import os

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") else ["interpreted"]
