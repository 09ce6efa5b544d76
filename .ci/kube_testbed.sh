#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a kube-apiserver, and fetches etcd and kubectl, for `make test-kube`. `make kube-testbed` calls it. It needs apt
# with Debian 12's packages, 4 GB of disk while it builds and 200 MB afterwards, and some minutes of two cores.
#
# Debian has no binary package of kube-apiserver. It has the source package `kubernetes`, whose vendored modules are
# complete, so the build needs no other registry. Nothing is installed: packages are unpacked below $FOLDER. apt gets a
# folder of its own for its lists, so that the sources of packages need no change to the settings of the machine.
#
# Steps that are done are not repeated. A run that was interrupted goes on from there, and Go's cache keeps what was
# compiled. AG_KUBE_TESTBED names another folder, which several checkouts can share. JOBS limits the compilers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

FOLDER=$(realpath -m "${AG_KUBE_TESTBED:-build/kube-testbed}")
WORK=$FOLDER/work
GO_PACKAGE=golang-1.19
JOBS=${JOBS:-$(nproc)}

say() { echo "agspeed kube-testbed: $*"; }
fail() { say "$*" >&2; exit 1; }

# Runs a function once, with its output in a file, and shows the end of that file if it fails.
step() {
  local name=$1 text=$2 log="$WORK/$1.log"
  [[ -e "$WORK/$name.done" ]] && return
  say "$text"
  # In a subshell of its own, because bash ignores `set -e` in a function whose status is tested.
  set +e
  (set -e; "$name") >"$log" 2>&1
  local status=$?
  set -e
  if ((status != 0)); then
    tail -n 30 "$log" >&2
    fail "$name ended with status $status; the lines above are the end of $log. Run it again after mending the cause:" \
         "it goes on from this step."
  fi
  touch "$WORK/$name.done"
}

apt() {
  local program=$1
  shift
  "$program" -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$WORK/apt/sources" \
    -o Dir::State::lists="$WORK/apt/lists" -o Dir::Cache="$WORK/apt/cache" -o APT::Sandbox::User=root "$@"
}

# apt's lists, with the sources of packages. The machine's own settings name the servers.
lists() {
  local file
  rm -rf "$WORK/apt"
  mkdir -p "$WORK"/apt/{sources,lists/partial,cache/archives/partial}
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [[ -f "$file" ]] || continue
    sed -n 's/^deb \(.*\)/deb \1\ndeb-src \1/p' "$file" >"$WORK/apt/sources/$(basename "$file" .list).list"
  done
  for file in /etc/apt/sources.list.d/*.sources; do
    [[ -f "$file" ]] || continue
    sed 's/^Types:.*/Types: deb deb-src/' "$file" >"$WORK/apt/sources/$(basename "$file")"
  done
  apt apt-get update -q
  apt apt-cache showsrc kubernetes | grep -q '^Package: kubernetes$' || {
    echo "apt offers no source package named kubernetes: this needs Debian 12"
    return 1
  }
}

packages() {
  rm -rf "$WORK/packages" "$WORK/system"
  mkdir -p "$WORK/packages" "$WORK/system"
  cd "$WORK/packages"
  apt apt-get source -q --download-only kubernetes
  apt apt-get download -q "$GO_PACKAGE-go" "$GO_PACKAGE-src" golang-github-modern-go-reflect2-dev etcd-server \
    kubernetes-client
  local each
  for each in *.deb; do dpkg-deb -x "$each" "$WORK/system"; done
}

# The build uses a GOPATH and the vendored modules, as Kubernetes 1.20 does in its own.
sources() {
  rm -rf "$SOURCE"
  mkdir -p "$(dirname "$SOURCE")"
  dpkg-source --no-check -x "$WORK"/packages/kubernetes_*.dsc "$SOURCE"
  # The vendored reflect2 does not fit the maps of newer releases of Go. With it, the server ends when it reads a custom
  # resource.
  local reflect2=vendor/github.com/modern-go/reflect2
  rm -rf "${SOURCE:?}/$reflect2"
  cp -r "$WORK/system/usr/share/gocode/src/github.com/modern-go/reflect2" "$SOURCE/$reflect2"
  # The check of types compares the addresses of values to find nil. In newer releases of Go, an empty text has the
  # address of a zero value, and the server would refuse it in custom resources.
  local check=$SOURCE/vendor/k8s.io/kube-openapi/pkg/validation/validate/type.go
  sed -i 's/^\tif data == nil || reflect.DeepEqual(.*{$/\tif data == nil {/' "$check"
  grep -q $'^\tif data == nil {$' "$check"
}

go_build() {
  cd "$SOURCE"
  go build -p "$JOBS" "$@"
}

# The server describes its own types by a file that Kubernetes generates in its build.
generate() {
  go_build -o "$WORK/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
  cd "$SOURCE"
  local folders
  folders=$(grep -rl --include='*.go' '^// +k8s:openapi-gen=' pkg staging/src |
    grep -v -e '/testdata/' -e '_test\.go$' -e 'zz_generated' -e '/code-generator/' -e '/sample-' |
    xargs -n1 dirname | sort -u |
    sed -e 's#^staging/src/#k8s.io/kubernetes/vendor/#' -e 's#^pkg/#k8s.io/kubernetes/pkg/#' | paste -sd,)
  "$WORK/openapi-gen" --logtostderr -i "$folders" -p k8s.io/kubernetes/pkg/generated/openapi \
    -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt -o "$GOPATH/src" -r /dev/null
}

server() {
  local version flags
  version=$(sed -n 's/^Version: .*really\([0-9.]*\)-.*/\1/p' "$WORK"/packages/kubernetes_*.dsc | head -n 1)
  [[ "$version" == 1.* ]] || { echo "the source package's version has an unknown form: '$version'"; return 1; }
  flags="-s -w"
  local each
  for each in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    each=k8s.io/kubernetes/vendor/$each
    flags+=" -X $each.gitVersion=v$version -X $each.gitMajor=1 -X $each.gitMinor=$(cut -d. -f2 <<<"$version")"
  done
  go_build -ldflags "$flags" -o "$WORK/kube-apiserver" ./cmd/kube-apiserver
}

# All programs are there, or none.
keep() {
  mkdir -p "$WORK/bin"
  cp "$WORK/kube-apiserver" "$WORK"/system/usr/bin/{etcd,kubectl} "$WORK/bin/"
  "$WORK/bin/kube-apiserver" --version
  "$WORK/bin/etcd" --version
  "$WORK/bin/kubectl" version --client
  rm -rf "$FOLDER/bin"
  mv "$WORK/bin" "$FOLDER/bin"
}

[[ ! -d "$FOLDER/bin" ]] || exit 0
command -v apt-get >/dev/null || fail "this system has no apt-get; the test bed is built from Debian 12's packages"
mkdir -p "$WORK"
export GOPATH=$WORK/gopath GO111MODULE=off GOFLAGS= GOROOT=$WORK/system/usr/lib/go-1.19 GOCACHE=$WORK/cache CGO_ENABLED=0
export GOGC=400  # the compilers collect garbage less often, and use more memory
export PATH=$GOROOT/bin:$PATH
SOURCE=$GOPATH/src/k8s.io/kubernetes
step lists "reading apt's lists, with the sources of packages"
step packages "downloading the sources of Kubernetes, Go, etcd and kubectl (130 MB)"
step sources "unpacking the sources of Kubernetes"
step generate "generating the description of the server's types"
step server "compiling kube-apiserver, which takes some minutes"
step keep "keeping kube-apiserver, etcd and kubectl"
rm -rf "$WORK"
say "the programs are in $FOLDER/bin; make test-kube uses them"
