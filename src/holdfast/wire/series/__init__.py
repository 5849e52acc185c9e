"""The REST API's bodies about jobs that come in series: arrays and schedules."""
