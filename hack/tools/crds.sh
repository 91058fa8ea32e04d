#!/usr/bin/env bash
# Writes what api/ says in another form: its deepcopy functions, and the CustomResourceDefinitions as templates of the chart.
set -euo pipefail

controller_gen=${1:?usage: crds.sh CONTROLLER_GEN}
cd "$(dirname "$0")/../.."
templates=chart/istio-pod-network-controller/templates

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$controller_gen" object paths=./api/... crd paths=./api/... output:crd:dir="$made"

# template FILE: the definition as a template. Helm leaves it in the cluster: with a definition the API server deletes all its objects.
template() {
  echo "{{- /* Made from api/ by \`make generate\`; change it there. */ -}}"
  echo '{{- if .Values.sidecars.enabled }}'
  # Braces in a description are text, and not for Helm.
  sed -e '/^---$/d' -e 's/{{/{{ "{{" }}/g' \
    -e 's|^  annotations:$|  labels:\n    {{- include "agent.labels" . \| nindent 4 }}\n  annotations:\n    helm.sh/resource-policy: keep|' "$1"
  echo '{{- end }}'
}

rm -f "$templates"/crd-*.yaml
for file in "$made"/*.yaml; do
  template "$file" >"$templates/crd-${file##*_}"
done
