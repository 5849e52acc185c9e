"""What requests and reports do to calls of Python functions. Pure."""
