#!/usr/bin/env bash
# Loads the agent's image into the one-node cluster that is up and installs, or upgrades, the chart there. Arguments go to helm.
set -euo pipefail

cd "$(dirname "$0")/.."
name=istio-pod-network-controller
helm=${HELM:-$(make -s print-helm)}

# The chart takes the image that the backend needs.
image=image
if [[ " $* " == *" redirection.backend=iptables "* ]]; then image=image-iptables; fi
hack/cluster/kc load "build/$image.tar"
# The image's name stays the same from build to build; the digest makes running agents give way to another build.
digest=$(sha256sum <"build/$name" | cut -c1-16)
hack/cluster/kc exec -- "$helm" upgrade --install "$name" "chart/$name" --namespace "$name" --create-namespace \
  --set-string "agent.podAnnotations.build=$digest" --wait --timeout 2m "$@" >/dev/null
