#!/bin/sh
# What the tests of a user's own database need: a packaged PostgreSQL server, and a pooler. The tests start their own.
set -u
missing=""
[ -n "$(ls /usr/lib/postgresql/*/bin/initdb 2>/dev/null)" ] || missing="$missing postgresql"
PATH="$PATH:/usr/sbin" command -v pgbouncer >/dev/null 2>&1 || missing="$missing pgbouncer"
if [ -z "$missing" ]; then
  echo "PostgreSQL tools: all here"
elif [ "$(id -u)" != 0 ]; then
  echo "PostgreSQL tools:$missing missing, and only root can install them; no test runs on a packaged server"
elif ! command -v apt-get >/dev/null 2>&1; then
  echo "PostgreSQL tools:$missing missing, and there is no apt-get here; no test runs on a packaged server"
else
  echo "PostgreSQL tools: installing$missing"
  # Installed, not started, and without a cluster: the tests make their own.
  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
  mkdir -p /etc/postgresql-common
  [ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
  if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null 2>&1; then
    echo "PostgreSQL tools: apt-get could not install$missing; no test runs on a packaged server"
  fi
fi
