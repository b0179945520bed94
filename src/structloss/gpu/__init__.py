"""Checks of the Triton engine, for a machine with a GPU and for one without.

`python -m structloss.gpu` runs both where there is none: every operation in Triton's interpreter against a list of all
outputs, and every kernel compiled for several GPUs. `checks.check_operations(device)` runs the first on a GPU.
"""
