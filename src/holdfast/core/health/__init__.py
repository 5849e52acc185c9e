"""The health of hosts, decided: what their checks measured, and which host failures speak against. Pure."""
