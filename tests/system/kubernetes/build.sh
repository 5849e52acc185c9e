#!/usr/bin/env bash
# Kubernetes' own programs, 1.20.2, from the source package of Debian bookworm. usage: build.sh FOLDER; root, about ten minutes on two cores.
set -euo pipefail
mkdir -p "$1"; OUT=$(realpath "$1"); HERE=$(dirname "$(realpath "$0")"); WORK=$(mktemp -d); trap 'rm -rf "$WORK"' EXIT
export DEBIAN_FRONTEND=noninteractive
sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >/etc/apt/sources.list.d/debian-source.sources
apt-get update -qq
apt-get install -y -qq --no-install-recommends golang-go dpkg-dev gcc libc6-dev golang-github-modern-go-reflect2-dev >/dev/null
cd "$WORK"; apt-get source -qq --download-only kubernetes; dpkg-source -x ./*.dsc src >/dev/null; cd src
# Go 1.18 and newer need reflect2 1.0.2; the vendored 1.0.1 makes the API server crash on a JSON patch.
rm -f vendor/github.com/modern-go/reflect2/*.{go,s}
cp /usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} vendor/github.com/modern-go/reflect2/; rm -f vendor/github.com/modern-go/reflect2/*_test.go
mkdir -p .go/src/k8s.io; ln -sfn ../../.. .go/src/k8s.io/kubernetes
export GOPATH="$PWD/.go" GO111MODULE=off CGO_ENABLED=0 GOCACHE="$WORK/cache" HOME="$WORK"
cd .go/src/k8s.io/kubernetes
# The API's own description is generated, not shipped.
go build -o "$WORK/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
packages=$(grep -rl --include='*.go' '+k8s:openapi-gen=' vendor/k8s.io/ staging/src/k8s.io pkg | xargs -n1 dirname | sed 's#^staging/src/#vendor/#' | sort -u |
  grep -v -E 'sample-apiserver|code-generator/_examples|/test/' | sed 's#^#k8s.io/kubernetes/#' | paste -sd,)
"$WORK/openapi-gen" --logtostderr -i "$packages" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
  -h hack/boilerplate/boilerplate.generatego.txt -r "$WORK/violations" --output-base "$GOPATH/src" 2>/dev/null
for program in kube-apiserver kube-scheduler kube-controller-manager kubelet; do
  go build -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v1.20.2 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=20" \
    -o "$OUT/$program" "./cmd/$program"
  echo "built $program"
done
gcc -O2 -static -o "$OUT/pause" "$HERE/pause.c"
