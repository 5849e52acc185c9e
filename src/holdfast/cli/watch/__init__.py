"""Commands that wait and watch: `wait`, `top`, `dashboard` and `telemetry`."""
