#!/bin/sh
# What the container tests need: podman, a registry, a small init, a C compiler; docker's engine, which the tests start and end
# themselves; and iproute2 for gangs over network namespaces. Without them those tests are skipped.
set -u

# The engine has a call of its own: where it cannot be had, podman still can.
install() {
  missing=""
  for tool in "$@"; do
    PATH="$PATH:/usr/sbin" command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
  done
  if [ -z "$missing" ]; then
    echo "container tools:$(printf ' %s' "$@") all here"
  elif [ "$(id -u)" != 0 ]; then
    echo "container tools:$missing missing, and only root can install them; tests that need them are skipped"
  elif ! command -v apt-get >/dev/null 2>&1; then
    echo "container tools:$missing missing, and there is no apt-get here; tests that need them are skipped"
  else
    echo "container tools: installing$missing"
    packages=$(echo "$missing" | sed 's/ gcc/ gcc libc6-dev/; s/ ip$/ iproute2/; s/ dockerd/ docker.io/')
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # words on purpose
    if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends $packages; } >/dev/null; then
      echo "container tools: apt-get could not install$missing; tests that need them are skipped"
    fi
  fi
}

install podman buildah runc docker-registry catatonit gcc ip
install dockerd
