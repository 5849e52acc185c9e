"""Jobs, in memory: submitted, admitted, leased, drained."""
