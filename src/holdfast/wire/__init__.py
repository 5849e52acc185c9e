"""Messages and codecs. Pure: values in, bytes out, and back."""
