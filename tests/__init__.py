"""The tests: one file per source file (`test_<folder>_<file>.py`), plus the guards of packaging, floors and docs."""
