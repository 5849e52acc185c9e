"""Run the executors of calls on one host: start them, exchange calls with them, watch each call."""
