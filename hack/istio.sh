#!/usr/bin/env bash
# Builds real Istio, of the version that test/istio pins, for the end-to-end tests: its programs (ten minutes of two processors at first, nothing
# when they are there), its images and its charts. No container engine is needed. Prints the directory.
# With the argument test it runs the tests of test/istio instead, with the same packages. With programs it builds only what programs pods, which is
# istio-cni and pilot-agent, and prints the directory; with built it prints that only if both are there, and builds nothing.
# Envoy is not written in Go. In its place the image proxyv2:istio has the test proxy, which listens where Envoy would and knows nothing of istiod, and
# proxyv2:outside has the stand-in of test/e2e/xdsenvoy, which does what istiod says, or the Envoy that E2E_ENVOY names. proxyv2:canary
# is the same as proxyv2:outside.
set -euo pipefail

cd "$(dirname "$0")/.."
kc=hack/cluster/kc
export GOWORK=off CGO_ENABLED=0
# What the cluster's programs are built with, and much that they share is compiled already.
flags=(-trimpath -buildvcs=false -tags seccomp,netgo,osusergo,no_btrfs,no_zfs,no_devmapper -gcflags 'all=-l -dwarf=false' -ldflags '-s -w')
if [[ ${1:-} == test ]]; then
  cd test/istio
  exec go test -v "${flags[@]}" .
fi
key=$({ go env GOVERSION; echo "${flags[@]}"; cat test/istio/go.mod test/istio/go.sum; } | sha256sum | cut -c1-16)
bin=${XDG_CACHE_HOME:-$HOME/.cache}/istio-pod-network-controller/cluster/istio-$key
small=(cni/cmd/istio-cni pilot/cmd/pilot-agent)
all=(cni/cmd/istio-cni cni/cmd/install-cni pilot/cmd/pilot-agent pilot/cmd/pilot-discovery) # small ones first: what is compiled stays when a build is interrupted
case ${1:-} in
  programs) all=("${small[@]}") ;;
  built)
    for package in "${small[@]}"; do [[ -e $bin/${package##*/} ]] || exit 0; done
    echo "$bin"
    exit
    ;;
esac
mkdir -p "$bin"
exec 9>"$bin/lock" # checkouts share the cache
flock 9
for package in "${all[@]}"; do
  if [[ -e $bin/${package##*/} ]]; then continue; fi
  echo "building ${package##*/}" >&2
  (cd test/istio && GOGC=400 ../../hack/build.sh "${flags[@]}" -o "$bin/${package##*/}.partial" "istio.io/istio/$package") >&2
  mv "$bin/${package##*/}.partial" "$bin/${package##*/}"
done
flock -u 9
if [[ ${1:-} == programs ]]; then
  echo "$bin"
  exit
fi

helm=${HELM:-$(make -s print-helm)}
out=$PWD/build/istio
rm -rf "$out"
mkdir -p "$out"
go -C hack build "${flags[@]}" -o "$out/testproxy" ./cluster/cmd/testproxy
libraries=()
if [[ ${E2E_ENVOY:-} ]]; then
  cp "$E2E_ENVOY" "$out/envoy"
  while read -r library; do libraries+=(--file "$library:$library"); done < <(ldd "$out/envoy" | grep -o '/[^ ]*' || true) # none if it is static
else
  go -C test/e2e build "${flags[@]}" -o "$out/envoy" ./xdsenvoy/cmd/envoy
fi
source=$(go -C test/istio list -m -f '{{.Dir}}' istio.io/istio)
$kc image --binary "$bin/pilot-discovery" --entrypoint /usr/local/bin/pilot-discovery --user 1337:1337 --tag localhost/pilot:istio -o "$out/pilot.tar"
# Image and the program in Envoy's place.
while read -r tag envoy archive; do
  $kc image --binary "$bin/pilot-agent" --entrypoint /usr/local/bin/pilot-agent --iptables --file "$out/$envoy:/usr/local/bin/envoy" "${libraries[@]}" \
    --file "$source/tools/packaging/common/envoy_bootstrap.json:/var/lib/istio/envoy/envoy_bootstrap_tmpl.json" --tag "localhost/proxyv2:$tag" -o "$out/$archive"
done <<<"istio testproxy proxyv2.tar
outside envoy proxyv2-outside.tar
canary envoy proxyv2-canary.tar"
$kc image --binary "$bin/install-cni" --entrypoint /usr/local/bin/install-cni --file "$bin/istio-cni:/opt/cni/bin/istio-cni" \
  --tag localhost/install-cni:istio -o "$out/install-cni.tar"
for chart in base istio-control/istio-discovery istio-cni; do
  "$helm" package "$source/manifests/charts/$chart" --destination "$out/charts" >/dev/null
done
echo "$out"
