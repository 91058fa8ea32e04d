#!/usr/bin/env bash
# Measures speed, size and scale, prints tables and writes build/bench.json: what the kernel and the CNI plugin cost, what a full node and a
# large cluster cost, and, in a one-node cluster, what a pod costs. Of its figures only the busiest second of an outage fails it.
#
#   hack/bench.sh                  all of it; BENCH_CLUSTER=0 leaves the one-node cluster out. With SMALL=1 each part runs once with small
#                                  sizes, which says that the parts work and nothing else
#   hack/bench.sh kernel [FLAG...] what the kernel and the CNI plugin cost only; flags as `go -C hack/bench run . -help` lists them
#   hack/bench.sh scale [FLAG...]  the full node, idle proxies and the large cluster only; flags as `build/bench-scale -help` lists them
#   hack/bench.sh peers [FLAG...]  the agent beside Istio's istio-cni and istio-iptables, which it builds (ten minutes of two processors at first). The
#                                  other calls have this part with Istio's programs only if they are built, and else with the agent alone
#   hack/bench.sh against COMMIT   the memory of the agent without --sidecars against that of another commit's, started in turn
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
make -s build

# kernel measures in network namespaces of this machine.
kernel() {
  # Built the same way as the plugin, which is compared with it.
  CGO_ENABLED=0 go -C hack/bench build -trimpath -ldflags='-s -w' -o "$PWD/build/bench-empty" ./empty
  go -C hack/bench run . "${small[@]}" -json "$file" -plugin "$PWD/build/istio-pod-network-cni" -empty "$PWD/build/bench-empty" "$@"
}

# scale measures against etcd and kube-apiserver. Its processes and mounts end with it, even if it is killed.
scale() {
  local programs=${KUBEBUILDER_ASSETS:-}
  if [[ -z $programs ]]; then programs=$(hack/cluster/kc build etcd kube-apiserver); fi
  CGO_ENABLED=0 go -C hack/scale build -trimpath -o "$PWD/build/bench-scale" .
  unshare --mount --pid --fork --kill-child --mount-proc --propagation private \
    build/bench-scale -programs "$programs" -agent "$PWD/build/istio-pod-network-controller" -json "$file" "${small[@]}" "$@"
}

if [[ ${1:-} == against ]]; then
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  git archive "${2:?name a commit}" | tar -x -C "$tree"
  CGO_ENABLED=0 go -C "$tree" build -trimpath -ldflags='-s -w' -o "$PWD/build/bench-reference" .
  set -- scale -parts reference -reference "$PWD/build/bench-reference"
fi
if [[ ${1:-} == peers ]]; then
  istio=$(hack/istio.sh programs)
  set -- scale -parts peers,faults -istio "$istio" "${@:2}"
fi
if [[ ${1:-} == kernel || ${1:-} == scale ]]; then
  "$@"
  echo "added to ${file#"$PWD/"}"
  exit
fi
rm -f "$file"
echo "measuring in network namespaces of this machine"
kernel
echo "measuring a full node, idle proxies and a large cluster"
scale
echo "measuring beside Istio's programs"
scale -parts peers,faults -istio "$(hack/istio.sh built)"
if [[ ${BENCH_CLUSTER:-1} == 0 ]]; then
  echo "written to ${file#"$PWD/"}"
  exit
fi
echo "measuring in the one-node cluster"
# Pods with a readiness gate would become ready with the agent only, and cost the kubelet more.
E2E_OPTIMIZED=1 BENCH_JSON=$file E2E_VALUES='--set admission.enabled=false' E2E_BACKENDS=nftables E2E_HOOKS=nri hack/e2e.sh -test.run '^$' -test.bench . -test.benchtime 1x -test.v=false
echo "written to ${file#"$PWD/"}"
