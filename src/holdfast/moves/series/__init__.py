"""The moves of jobs that come in series: after others, in arrays, by a schedule. Pure."""
