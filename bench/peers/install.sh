#!/usr/bin/env bash
# The other systems, in an environment of their own, and Redis where root and apt-get are there. Run by `make bench-peers`.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! command -v redis-server >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -qq && apt-get install -y -qq redis-server >/dev/null
fi
command -v redis-server >/dev/null || echo "no redis-server: Celery and Dramatiq are left out"
if [ ! -e .venv-peers/.ready-2 ]; then
  echo "installing PgQueuer, Procrastinate, Celery, Dramatiq and HyperQueue into .venv-peers (once)"
  python3 -m venv .venv-peers
  .venv-peers/bin/pip install --quiet --disable-pip-version-check \
    'pgqueuer==1.6.0' asyncpg 'procrastinate==3.10.0' 'psycopg[binary]' 'celery[redis]==5.7.0' 'dramatiq[redis]==2.2.1' 'matplotlib>=3.9' 'hyperqueue==0.27.0'
  touch .venv-peers/.ready-2
fi
