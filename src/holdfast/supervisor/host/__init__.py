"""The host manager and its warden: a host's end of a supervised run."""
