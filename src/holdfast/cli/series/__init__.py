"""Commands about jobs that come in series: arrays, sweeps, schedules."""
