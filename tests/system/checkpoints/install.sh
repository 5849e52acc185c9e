#!/bin/sh
# What the tests against a real S3 need: Ceph's object gateway, its monitor and its object store, which the tests start and end
# themselves on loopback, in memory. Without them those tests are skipped.
set -u

missing=""
for tool in radosgw ceph-mon ceph-osd; do
  command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
if [ -z "$missing" ]; then
  echo "S3 tools: radosgw ceph-mon ceph-osd all here"
elif [ "$(id -u)" != 0 ]; then
  echo "S3 tools:$missing missing, and only root can install them; tests that need them are skipped"
elif ! command -v apt-get >/dev/null 2>&1; then
  echo "S3 tools:$missing missing, and there is no apt-get here; tests that need them are skipped"
else
  echo "S3 tools: installing$missing"
  export DEBIAN_FRONTEND=noninteractive
  if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends radosgw ceph-mon ceph-osd; } >/dev/null; then
    echo "S3 tools: apt-get could not install$missing; tests that need them are skipped"
  fi
fi
