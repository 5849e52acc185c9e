"""What every test package may use: a scratch PostgreSQL (see tests/store/pg_fixture.py), and examples without a stop-watch."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.store.pg_fixture import pg_database, pg_dsn, pg_server

__all__ = ["pg_database", "pg_dsn", "pg_server"]

# A property holds or it does not; how long an example takes says more about the machine than about the code.
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")
