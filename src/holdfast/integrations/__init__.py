"""Beats and checkpoints for libraries that run the training loop or the pipeline themselves.

Each module is for one library, which is imported only when that module is used. Outside Holdfast
everything here does nothing, so a script runs unchanged on a laptop. The modules share `draining`
and `folders`.
"""
