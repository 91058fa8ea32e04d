#!/usr/bin/env bash
# Measures speed and size, prints one table and writes build/bench.json: first what the kernel and the CNI plugin cost, then, in
# a one-node cluster, what a pod costs. BENCH_CLUSTER=0 leaves the cluster out. It reports and judges nothing.
set -euo pipefail

cd "$(dirname "$0")/.."
hack/preflight.sh test kernel
file=$PWD/build/bench.json
make -s build
# The same way as the plugin, which is compared with it.
CGO_ENABLED=0 go -C hack/bench build -trimpath -ldflags='-s -w' -o "$PWD/build/bench-empty" ./empty
rm -f "$file"

# measure runs what needs no cluster.
measure() {
  go -C hack/bench run . -json "$file" -plugin "$PWD/build/istio-pod-network-cni" -empty "$PWD/build/bench-empty"
}

if [[ ${BENCH_CLUSTER:-1} == 0 ]]; then
  measure
  exit
fi
echo "measuring in network namespaces of this machine"
measure >/dev/null
echo "measuring in the cluster"
# Pods with a readiness gate would become ready with the agent only, and cost the kubelet more.
BENCH_JSON=$file E2E_VALUES='--set admission.enabled=false' E2E_BACKENDS=nftables E2E_ENTRANCES=nri hack/e2e.sh -test.run '^$' -test.bench . -test.benchtime 1x -test.v=false
