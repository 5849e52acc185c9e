#!/bin/sh
# What the Kubernetes tests need: etcd, docker, kubectl from Debian, and Kubernetes' own programs in HOLDFAST_KUBERNETES_BIN
# (kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, pause), which build.sh makes from Debian's source package.
set -u
missing=""
for tool in etcd dockerd docker kubectl openssl curl; do
  PATH="$PATH:/usr/sbin" command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "kubernetes tools: installing$missing"
  export DEBIAN_FRONTEND=noninteractive
  packages=""
  for tool in $missing; do
    case $tool in
      etcd) packages="$packages etcd-server" ;;
      docker | dockerd) packages="$packages docker.io" ;;
      kubectl) packages="$packages kubernetes-client" ;;
      *) packages="$packages $tool" ;;
    esac
  done
  apt-get update -qq >/dev/null 2>&1
  # shellcheck disable=SC2086
  apt-get install -y -qq --no-install-recommends $packages >/dev/null 2>&1 || echo "kubernetes tools: apt-get could not install$packages"
elif [ -n "$missing" ]; then
  echo "kubernetes tools:$missing missing, and only root with apt-get can install them"
fi
if [ ! -x "${HOLDFAST_KUBERNETES_BIN:-/nowhere}/kubelet" ]; then
  echo "kubernetes tools: HOLDFAST_KUBERNETES_BIN names no folder with Kubernetes' programs; tests/system/kubernetes/build.sh FOLDER makes them"
else
  echo "kubernetes tools: all here"
fi
