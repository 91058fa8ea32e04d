#!/usr/bin/env bash
# Measures speed and size, prints one table and writes build/bench.json: first what the kernel costs, then, in a one-node
# cluster, what a pod costs. BENCH_CLUSTER=0 leaves the cluster out. It reports and judges nothing.
set -euo pipefail

cd "$(dirname "$0")/.."
file=$PWD/build/bench.json
mkdir -p build
rm -f "$file"

if [[ ${BENCH_CLUSTER:-1} == 0 ]]; then
  exec go -C hack/bench run . -json "$file"
fi
echo "measuring in network namespaces of this machine"
go -C hack/bench run . -json "$file" >/dev/null
echo "measuring in the cluster"
BENCH_JSON=$file E2E_BACKENDS=nftables E2E_ENTRANCES=nri hack/e2e.sh -test.run '^$' -test.bench . -test.benchtime 1x -test.v=false
