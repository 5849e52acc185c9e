#!/usr/bin/env bash
# Ends what start.sh began, newest first, with its containers, and waits for it. usage: stop.sh STATE
set -u
cd "$1" || exit 0
for socket in node*/docker.sock; do
  [ -S "$socket" ] || continue
  docker -H "unix://$PWD/$socket" ps -q 2>/dev/null | xargs -r docker -H "unix://$PWD/$socket" kill >/dev/null 2>&1
done
tac pids | while read -r pid _; do kill "$pid" 2>/dev/null; done
for _ in $(seq 50); do
  alive=0
  while read -r pid _; do kill -0 "$pid" 2>/dev/null && alive=1; done <pids
  [ $alive = 0 ] && break
  sleep 0.2
done
while read -r pid _; do kill -9 "$pid" 2>/dev/null; done <pids
grep " $PWD/" /proc/mounts | cut -d' ' -f2 | sort -r | xargs -r -n1 umount 2>/dev/null
exit 0
