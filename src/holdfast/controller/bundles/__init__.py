"""Bundles: the routes by which code and outputs come and go, and the bytes behind them."""
