"""Quantization: the plan, the files, importance matrices, and what it cost in quality."""
