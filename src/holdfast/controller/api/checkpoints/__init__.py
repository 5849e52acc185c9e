"""The routes of checkpoints, and the bytes behind them."""
