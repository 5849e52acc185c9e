"""The routes of jobs that come in series: arrays and schedules."""
