#!/usr/bin/env bash
# A real Kubernetes of one machine on loopback: etcd, API server, scheduler, controller-manager, and N nodes, each a kubelet with a docker of its own.
# usage: start.sh PROGRAMS STATE [NODES]; root; needs etcd, dockerd, kubectl, openssl, curl. Prints the kubeconfig's path once every node is ready.
# `stop.sh STATE` ends everything. Pods have no network of their own: they use hostNetwork.
set -euo pipefail
HERE=$(dirname "$(realpath "$0")")
BIN=$(realpath "$1")
mkdir -p "$2"
RUN=$(realpath "$2")
NODES=${3:-1}
cd "$RUN"
mkdir -p pki log
: >pids

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
PORT=$(free_port) ETCD=$(free_port) PEER=$(free_port)

start() { # name, command: in a session of its own, its output in log/name
  local name=$1
  shift
  setsid "$@" >"log/$name" 2>&1 </dev/null &
  echo "$! $name" >>pids
}
wait_for() { # seconds, log, command: until the command succeeds
  local seconds=$1 log=$2
  shift 2
  for _ in $(seq $((seconds * 5))); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.2
  done
  echo "waited $seconds s in vain for: $*" >&2
  tail -5 "log/$log" >&2
  exit 1
}

# ---- keys: one authority, the server's pair, a pair that signs service accounts' tokens; the administrator has a token
openssl req -x509 -newkey rsa:2048 -nodes -keyout pki/ca.key -out pki/ca.crt -days 30 -subj /CN=box-ca 2>/dev/null
openssl req -newkey rsa:2048 -nodes -keyout pki/api.key -out pki/api.csr -subj /CN=kube-apiserver 2>/dev/null
printf 'subjectAltName=IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes' >pki/san
openssl x509 -req -in pki/api.csr -CA pki/ca.crt -CAkey pki/ca.key -CAcreateserial -out pki/api.crt -days 30 -extfile pki/san 2>/dev/null
openssl genrsa -out pki/sa.key 2048 2>/dev/null
token=$(openssl rand -hex 16)
echo "$token,admin,admin,system:masters" >pki/tokens.csv
chmod 600 pki/*.key pki/tokens.csv
cat >kubeconfig <<YAML
apiVersion: v1
kind: Config
clusters: [{name: box, cluster: {server: "https://127.0.0.1:$PORT", certificate-authority: "$RUN/pki/ca.crt"}}]
users: [{name: admin, user: {token: "$token"}}]
contexts: [{name: box, context: {cluster: box, user: admin}}]
current-context: box
YAML
chmod 600 kubeconfig
k() { kubectl --kubeconfig "$RUN/kubeconfig" "$@"; }

# ---- the control plane
start etcd etcd --data-dir "$RUN/etcd" --listen-client-urls "http://127.0.0.1:$ETCD" --advertise-client-urls "http://127.0.0.1:$ETCD" \
  --listen-peer-urls "http://127.0.0.1:$PEER" --initial-advertise-peer-urls "http://127.0.0.1:$PEER" --initial-cluster "default=http://127.0.0.1:$PEER"
start apiserver "$BIN/kube-apiserver" --etcd-servers "http://127.0.0.1:$ETCD" --bind-address 127.0.0.1 --secure-port "$PORT" \
  --advertise-address 127.0.0.1 --tls-cert-file pki/api.crt --tls-private-key-file pki/api.key --client-ca-file pki/ca.crt \
  --token-auth-file pki/tokens.csv --service-account-key-file pki/sa.key --service-account-signing-key-file pki/sa.key \
  --service-account-issuer https://kubernetes.default.svc --authorization-mode RBAC --service-cluster-ip-range 10.96.0.0/16 \
  --allow-privileged=true --endpoint-reconciler-type=none --kubelet-preferred-address-types=Hostname
wait_for 90 apiserver k get --raw /readyz
start controllers "$BIN/kube-controller-manager" --kubeconfig kubeconfig --service-account-private-key-file pki/sa.key --root-ca-file pki/ca.crt \
  --use-service-account-credentials --node-monitor-grace-period=12s --pod-eviction-timeout=5s --leader-elect=false --bind-address 127.0.0.1 \
  --port 0 --secure-port "$(free_port)"
start scheduler "$BIN/kube-scheduler" --kubeconfig kubeconfig --leader-elect=false --bind-address 127.0.0.1 --port 0 --secure-port "$(free_port)"

# ---- nodes, named by loopback addresses; two kubelets on one engine would end each other's containers
for n in $(seq "$NODES"); do
  d="$RUN/node$n"
  mkdir -p "$d"
  docker_here="docker -H unix://$d/docker.sock"
  start "docker$n" dockerd --data-root "$d/docker" --exec-root "$d/exec" --pidfile "$d/docker.pid" -H "unix://$d/docker.sock" \
    --bridge=none --iptables=false --storage-driver vfs --add-runtime "box=$HERE/runc-box" --default-runtime box \
    --exec-opt native.cgroupdriver=cgroupfs --group root --cgroup-parent "/box$n"
  wait_for 60 "docker$n" $docker_here version
  tar -C "$BIN" -cf - pause | $docker_here import -c 'ENTRYPOINT ["/pause"]' - pause:box >/dev/null
  start "kubelet$n" "$BIN/kubelet" --kubeconfig "$RUN/kubeconfig" --hostname-override "127.0.1.$n" --root-dir "$d/kubelet" --container-runtime docker \
    --docker-endpoint "unix://$d/docker.sock" --pod-infra-container-image pause:box --cgroup-driver cgroupfs --cgroups-per-qos=false \
    --enforce-node-allocatable= --fail-swap-on=false --port 10250 --read-only-port 0 --healthz-port 10248 --cert-dir "$d/pki" \
    --address "127.0.1.$n" --healthz-bind-address "127.0.1.$n" --eviction-hard= --image-gc-high-threshold=100 --node-status-update-frequency=3s \
    --cni-bin-dir /nonexistent --volume-plugin-dir "$d/plugins" --cloud-provider= --resolv-conf= --network-plugin=
done
for n in $(seq "$NODES"); do
  wait_for 90 "kubelet$n" sh -c "kubectl --kubeconfig $RUN/kubeconfig get node 127.0.1.$n | grep -qw Ready"
  # cards that do not exist; the scheduler counts them
  curl -fsS --cacert pki/ca.crt -H "Authorization: Bearer $token" -H 'Content-Type: application/json-patch+json' -X PATCH \
    -d '[{"op":"add","path":"/status/capacity/nvidia.com~1gpu","value":"4"}]' "https://127.0.0.1:$PORT/api/v1/nodes/127.0.1.$n/status" >/dev/null
done
wait_for 60 controllers k get serviceaccount default

# ---- an image without any download: folders for mounts, and links as Debian has them
image=$(mktemp -d)
mkdir -p "$image"/{tmp,proc,dev,sys,etc,usr,root,var/lib}
for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$image/$folder"; done
echo 'root:x:0:0:root:/root:/bin/sh' >"$image/etc/passwd"
for n in $(seq "$NODES"); do tar -C "$image" -c . | docker -H "unix://$RUN/node$n/docker.sock" import - base:box >/dev/null; done
rm -rf "$image"
echo "$RUN/kubeconfig"
