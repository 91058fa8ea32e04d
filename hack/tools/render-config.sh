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
  rendered=$("$helm" template "$name" "chart/$name" --namespace "$name" --skip-tests "$@")
  {
    echo "# Made from chart/$name by \`make generate\`; change it there. The image is the chart's default: put yours in."
    cat config/namespace.yaml
    echo "$rendered"
  } >"$file"
}

# The policy that bounds the agent is in: without it a stolen token changes any pod of the cluster. It takes Kubernetes 1.30.
policies=admissionregistration.k8s.io/v1
render kubernetes.yaml --api-versions $policies/ValidatingAdmissionPolicy
render openshift.yaml --api-versions $policies/ValidatingAdmissionPolicy --set kubernetesDistribution=openshift
# The policy that prepares pods takes Kubernetes 1.36, so it has a file of its own.
render admission.yaml --api-versions $policies/MutatingAdmissionPolicy --show-only templates/admission-pods.yaml
