#!/usr/bin/env bash
# Writes what api/ says in another form: its deepcopy functions, and the CustomResourceDefinitions that the chart brings.
set -euo pipefail

controller_gen=${1:?usage: crds.sh CONTROLLER_GEN}
cd "$(dirname "$0")/../.."
crds=chart/istio-pod-network-controller/crds

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$controller_gen" object paths=./api/... crd paths=./api/... output:crd:dir="$made"

# definition FILE: as Helm makes it before all else. Helm deletes none, and Argo CD leaves those with the annotation: with a definition the API server
# deletes all its objects. `helm show crds` prints the files one behind the other, so each begins a document.
definition() {
  echo ---
  echo "# Made from api/ by \`make generate\`; change it there."
  sed -e '/^---$/d' \
    -e 's|^  annotations:$|  labels:\n    app.kubernetes.io/name: istio-pod-network-controller\n  annotations:\n    helm.sh/resource-policy: keep|' "$1"
}

rm -f "$crds"/*.yaml
for file in "$made"/*.yaml; do
  definition "$file" >"$crds/${file##*_}"
done
