"""The PostgreSQL settings that Holdfast sets on each of its connections. These settings override
those of the server, the database, the role and a pooler in session mode."""

_SETTINGS = (
    "timezone = 'UTC'",
    "datestyle = 'ISO'",
    "client_min_messages = warning",
    "default_transaction_isolation = 'read committed'",
    "statement_timeout = '30s'",
    "lock_timeout = 0",
    "idle_in_transaction_session_timeout = '5s'",
    "idle_session_timeout = 0",  # the connections of the lead and of notifications rest for long
    # `keep_plans` forbids kinds of plans by giving them costs of 1e10, at which a
    # stock server compiles a statement at each execution, or starts workers for it: 100 ms and more
    # in place of one.
    "jit = off",
    "max_parallel_workers_per_gather = 0",
    "plan_cache_mode = auto",
    # A killed controller's locks are free at once, and those of a lost machine within a minute,
    # where a stock server waits for two hours. Over a socket file the second has no effect.
    "tcp_keepalives_idle = 30",
    "tcp_keepalives_interval = 10",
    "tcp_keepalives_count = 3",
)
KEEP_PLANS_FOR_SESSION = (
    b"set plan_cache_mode = force_generic_plan; set enable_nestloop = off; set enable_seqscan = off"
)
"""The settings that the query `keep_plans` makes for a transaction, made once for a connection of the hot path."""
_SINCE_17 = "transaction_timeout = 0"
_WATCH_CLIENT = (  # some operating systems refuse it
    "do $$ begin perform set_config('client_connection_check_interval', '10s', false); "
    "exception when others then null; end $$"
)


def write_session_settings(server_version: int) -> bytes:
    """Return the statements that a new session begins with. server_version: 150018 for 15.18."""
    settings = (*_SETTINGS, *([_SINCE_17] if server_version >= 170000 else []))
    return "; ".join((*(f"set {setting}" for setting in settings), _WATCH_CLIENT)).encode()
