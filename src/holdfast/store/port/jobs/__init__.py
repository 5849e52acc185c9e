"""The ports of jobs: submitted, admitted, leased, drained."""
