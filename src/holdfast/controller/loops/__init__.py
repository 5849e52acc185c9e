"""The control loops: snapshot → plan in core → guarded apply. One leader runs them."""
