"""Measurements of unifit beside native loops and other libraries; `python -m benchmarks` runs the main one."""
