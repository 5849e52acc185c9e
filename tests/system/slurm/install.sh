#!/bin/sh
# What the Slurm tests need: munge and Slurm's daemons and commands. The tests start a cluster of their own from them.
# `make slurm` runs them; `make test` only where HOLDFAST_TESTS_NEED_SLURM is set, since a machine with Slurm may be a node of a real cluster.
set -u
missing=""
for tool in munged slurmctld slurmd sbatch; do
  PATH="$PATH:/usr/sbin" command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
if [ -z "$missing" ]; then
  echo "slurm tools: all here"
elif [ "$(id -u)" != 0 ]; then
  echo "slurm tools:$missing missing, and only root can install them; no test runs under Slurm"
elif ! command -v apt-get >/dev/null 2>&1; then
  echo "slurm tools:$missing missing, and there is no apt-get here; no test runs under Slurm"
else
  echo "slurm tools: installing$missing"
  export DEBIAN_FRONTEND=noninteractive
  if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends munge slurm-wlm slurm-client; } >/dev/null 2>&1; then
    echo "slurm tools: apt-get could not install$missing; no test runs under Slurm"
  fi
fi
