#!/usr/bin/env bash
# Renders the chart into config/, for people without Helm: one file for each distribution, namespace first.
set -euo pipefail

helm=${1:?usage: render-config.sh HELM}
cd "$(dirname "$0")/../.."
name=istio-pod-network-controller

# render FILE ARGUMENTS...
render() {
  local file=config/$1 rendered
  shift
  rendered=$("$helm" template "$name" "chart/$name" --namespace "$name" "$@")
  {
    echo "# Made from chart/$name by \`make generate\`; change it there. The image is the chart's default: put yours in."
    cat config/namespace.yaml
    echo "$rendered"
  } >"$file"
}

render kubernetes.yaml
render openshift.yaml --set kubernetesDistribution=OpenShift --set containerRuntime=crio
