"""Why a job is where it is, in sentences."""
