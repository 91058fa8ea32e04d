#!/usr/bin/env bash
# Measures speed, size and scale, prints tables and writes build/bench.json: what the rules of a pod cost, what a full node and a large cluster
# cost, and, in a one-node cluster, what a pod costs. Of its figures only the busiest second of an outage fails it.
#
#   hack/bench.sh                  all of it; BENCH_CLUSTER=0 leaves the one-node cluster out. With SMALL=1 each part runs once with small
#                                  sizes, which says that the parts work and nothing else
#   hack/bench.sh kernel [FLAG...] what rules cost the kernel only; flags as `build/bench -help` lists them
#   hack/bench.sh scale [FLAG...]  the full node, proxies and the large cluster only
set -euo pipefail

cd "$(dirname "$0")/.."
hack/preflight.sh test kernel
file=$PWD/build/bench.json
small=()
if [[ ${SMALL:-} ]]; then
  file=$PWD/build/bench-small.json
  small=(-small)
  export E2E_BENCH=small
fi
# Both are built alike, for the bench has much of the agent in it.
make -s build QUICK="${SMALL:-}"
CGO_ENABLED=0 ${SMALL:+hack/quick.sh} go -C hack build -trimpath -ldflags='-s -w' -o "$PWD/build/bench" ./bench

# measure PARTS [FLAG...]: processes and mounts end with the bench, even if it is killed.
measure() {
  unshare --mount --pid --fork --kill-child --mount-proc --propagation private build/bench -parts "$1" -json "$file" "${small[@]}" \
    -agent "$PWD/build/istio-pod-network-controller" "${@:2}"
}

kernel() { measure steps,packets "$@"; }

# scale measures against etcd and kube-apiserver.
scale() {
  export KUBEBUILDER_ASSETS=${KUBEBUILDER_ASSETS:-$(hack/cluster/kc build etcd kube-apiserver)}
  measure burst,node,proxies,hollow "$@"
}

if [[ ${1:-} == kernel || ${1:-} == scale ]]; then
  "$@"
  echo "added to ${file#"$PWD/"}"
  exit
fi
rm -f "$file"
echo "measuring in network namespaces of this machine"
kernel
echo "measuring a full node, proxies and a large cluster"
scale
if [[ ${BENCH_CLUSTER:-1} != 0 ]]; then
  echo "measuring in the one-node cluster"
  # Pods with a readiness gate would become ready with the agent only, and cost the kubelet more.
  E2E_OPTIMIZED=1 BENCH_JSON=$file E2E_VALUES='--set admission.enabled=false' E2E_BACKENDS=nftables E2E_HOOKS=nri \
    hack/e2e.sh -test.run '^$' -test.bench . -test.benchtime 1x -test.v=false
fi
echo "written to ${file#"$PWD/"}"
