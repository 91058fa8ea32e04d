#!/usr/bin/env bash
# What hack/e2e.sh does in the virtual machine of E2E_KERNEL, which sees the host's files: it starts the cluster and runs the tests that
# E2E_ARGUMENTS names. All programs are built already. What is written stays in the machine's memory.
set -euo pipefail

cd "$(dirname "$0")/../.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/istio-pod-network-controller/cluster
export XDG_CACHE_HOME=/kit
kit=$XDG_CACHE_HOME/istio-pod-network-controller/cluster

# The node's files are on a file system of their own: the machine's root is an overlay, which can carry no containers.
mkdir -p "$XDG_CACHE_HOME"
mount -t tmpfs -o size=4g kit "$XDG_CACHE_HOME"
mkdir -p "$kit"
for dir in "$cache"/*/; do
  if [[ ${dir##*/cluster/} != data* ]]; then ln -s "${dir%/}" "$kit/"; fi
done
# The script kc would ask the compiler each time whether something has changed.
cp "$cache/kc" "$kit/kc"
rm hack/cluster/kc
printf '#!/bin/sh\nexec %s --source %s "$@"\n' "$kit/kc" "$PWD/hack/cluster" >hack/cluster/kc
chmod +x hack/cluster/kc

export E2E_BUILT=1 E2E_VALUES="${E2E_VALUES:-} --timeout 30m"
read -ra arguments <<<"$E2E_ARGUMENTS"
exec hack/e2e.sh -test.timeout 3h "${arguments[@]}"
