"""Messages and codecs. Pure: values in, bytes out, and back. Sockets live in `controller`, `agent`
and `process`."""
