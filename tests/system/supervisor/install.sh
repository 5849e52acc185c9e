#!/bin/sh
# What the tests of managers over ssh need: OpenSSH's server and client. The tests start a server of their own, on loopback.
set -u
missing=""
for tool in sshd ssh ssh-keygen; do
  PATH="$PATH:/usr/sbin" command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
if [ -z "$missing" ]; then
  echo "ssh tools: all here"
elif [ "$(id -u)" != 0 ]; then
  echo "ssh tools:$missing missing, and only root can install them; no test runs over ssh"
elif ! command -v apt-get >/dev/null 2>&1; then
  echo "ssh tools:$missing missing, and there is no apt-get here; no test runs over ssh"
else
  echo "ssh tools: installing$missing"
  # Installed, not started: whether this machine lets anybody in is not for a test to decide.
  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
  if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends openssh-server openssh-client; } >/dev/null 2>&1; then
    echo "ssh tools: apt-get could not install$missing; no test runs over ssh"
  fi
fi
