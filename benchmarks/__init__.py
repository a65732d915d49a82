"""Repeatable measurements: every figure is a ratio to another way of doing the same job in the same run."""
