"""The server: the API over the store, and the control loops that one leader runs. Holds no state of
its own."""
