"""Measuring: runs, statistics, reports and comparisons."""
