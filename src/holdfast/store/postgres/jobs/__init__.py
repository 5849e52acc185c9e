"""Jobs, in PostgreSQL: submitted, admitted, leased, drained."""
