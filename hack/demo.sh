#!/usr/bin/env bash
# Shows the agent on a cluster: two pods with a proxy each, and one request between them that both proxies handle. Then the same pods without
# a proxy in their spec, and an upgrade of their proxies under load. With EGRESS=1 in the environment also a pod that reaches only the names
# that its namespace allows, with ISTIO=1 also Istio's bookinfo in a real mesh.
#
#   hack/demo.sh              on a one-node cluster of its own, which it starts; hack/preflight.sh looks at what it needs
#   hack/demo.sh --existing   on the cluster that kubectl and helm in PATH reach (DEMO_KUBECONFIG names another one), with images that its
#                             nodes can pull: DEMO_AGENT_IMAGE, DEMO_APP_IMAGE (testapp) and DEMO_PROXY_IMAGE (haproxy), each NAME:TAG;
#                             `hack/cluster/kc images` packs the last two as archives
set -euo pipefail

cd "$(dirname "$0")/.."
name=istio-pod-network-controller
bold='' plain=''
if [[ -t 1 ]]; then bold=$'\033[1m' plain=$'\033[0m'; fi
step() { printf '\n%s==> %s%s\n' "$bold" "$*" "$plain"; }
note() { printf '    %s\n' "$@"; }
shown() { sed 's/^/      /'; }

existing='' building='' # by a process group
if [[ ${1:-} == --existing || -n ${DEMO_KUBECONFIG:-} ]]; then
  existing=1
  : "${DEMO_AGENT_IMAGE:?name the images: see the first lines of hack/demo.sh}" "${DEMO_APP_IMAGE:?}" "${DEMO_PROXY_IMAGE:?}"
  if [[ -n ${DEMO_KUBECONFIG:-} ]]; then export KUBECONFIG=$DEMO_KUBECONFIG; fi
  kubectl=kubectl
elif [[ $# -gt 0 ]]; then
  echo "usage: hack/demo.sh [--existing]" >&2
  exit 2
else
  kubectl="hack/cluster/kc kubectl"
fi
k() { $kubectl "$@"; }
sidecars=managedproxies
# shellcheck source=hack/demo/sidecars.sh
source hack/demo/sidecars.sh
# shellcheck source=hack/demo/egress.sh
source hack/demo/egress.sh
# shellcheck source=hack/demo/istio.sh
source hack/demo/istio.sh

# failed keeps the cluster as it is, to be looked at.
failed() {
  local status=$?
  end_client
  if [[ $building ]]; then kill -- "-$building" 2>/dev/null || true; fi
  if ((status == 0)); then return; fi
  step "The demo has failed: the reason is above"
  note "to look at the cluster: $kubectl get pods -A" "the demo can be run again"
  if [[ ! $existing ]]; then note "to remove everything, also after a failure: make demo-down"; fi
}

# install_agent installs the agent or changes how it is installed. Arguments go to helm.
install_agent() {
  if [[ ! $existing ]]; then
    hack/deploy.sh "$@"
    return
  fi
  helm upgrade --install "$name" "chart/$name" --namespace "$name" --create-namespace \
    --set image.repository="${DEMO_AGENT_IMAGE%:*}",image.tag="${DEMO_AGENT_IMAGE##*:}" --wait --timeout 5m "$@" >/dev/null
}

# build builds the cluster's programs, then the agent beside Helm: both share their packages.
build() {
  hack/cluster/kc build >/dev/null
  set -m # a process group of its own, all of which ends if Helm's build fails
  make -s image QUICK=1 &
  building=$!
  set +m
  if [[ -z ${HELM:-} || ! -x ${HELM:-} ]]; then
    HELM=$(make -s print-helm)
    export HELM
  fi
  wait "$building"
  building=''
}

prepare() {
  if [[ $existing ]]; then
    step "Installing the agent with Helm"
    install_agent
    return
  fi
  hack/preflight.sh build images up
  step "Building the agent, Kubernetes and Helm (the first time some six minutes on two cores, or twice that; later nothing)"
  build
  if ! hack/cluster/kc status >/dev/null 2>&1; then
    step "Starting a one-node cluster of real Kubernetes"
    hack/cluster/kc up
  fi
  step "Installing the agent with Helm"
  install_agent
}

# details prints one field of what the agent has written about a pod.
details() {
  k -n bookinfo get pod "$1" -o jsonpath='{.metadata.annotations.pod-network-controller\.istio\.io/details}' | sed -n "s|.*\"$2\":\"\([^\"]*\)\".*|\1|p"
}

# logged waits for a proxy's line about a destination.
logged() {
  local line
  for _ in {1..50}; do
    line=$(k -n bookinfo logs "$1" -c istio-proxy | grep "^$2 .*original-dst=$3 " | tail -1) && break
    sleep 0.1
  done
  echo "${line:?the proxy of $1 has logged no $2 connection to $3}"
}

pod_of() { k -n bookinfo get pods -l "app=$1" --sort-by .metadata.creationTimestamp -o jsonpath='{.items[-1:].metadata.name}'; }

trap failed EXIT
prepare

step "Creating namespace bookinfo, annotated $name/initialize=true, with two applications"
sed -e "s|localhost/testapp:1|${DEMO_APP_IMAGE:-localhost/testapp:1}|" -e "s|localhost/haproxy:1|${DEMO_PROXY_IMAGE:-localhost/haproxy:1}|" \
  hack/demo/bookinfo.yaml | k apply -f - | shown
k -n bookinfo apply -f hack/cluster/samples/haproxy-config.yaml | shown
for app in details productpage; do k -n bookinfo rollout status "deploy/$app" --timeout 3m | tail -1 | shown; done

step "The agent has put redirection rules into both pods, and says so in their annotations"
k -n bookinfo get pods -o custom-columns='POD:.metadata.name,STATUS:.metadata.annotations.pod-network-controller\.istio\.io/status' | shown
details=$(pod_of details) productpage=$(pod_of productpage)
k -n bookinfo get pod "$details" -o jsonpath='{.metadata.annotations.pod-network-controller\.istio\.io/details}{"\n"}' | shown
note "The pods asked for nothing: no NET_ADMIN, no root, no init container."

step "productpage asks details, as if there were no proxies"
service=$(k -n bookinfo get service details -o jsonpath='{.spec.clusterIP}')
address=$(k -n bookinfo get pod "$details" -o jsonpath='{.status.podIP}')
k -n bookinfo exec "$productpage" -c app -- /testapp get "http://$service:9080/details/0" | shown
note "outbound: the connection to the service, $service:9080, was redirected to productpage's proxy, which found the original destination:"
logged "$productpage" outbound "$service:9080" | shown
note "inbound: the connection to the pod, $address:9080, was redirected to details' proxy:"
logged "$details" inbound "$address:9080" | shown
note "The application was reached through its own proxy: the peer above is 127.0.0.6."

# agent_of prints the agent of a pod's node.
agent_of() {
  local node
  node=$(k -n "$1" get pod "$2" -o jsonpath='{.spec.nodeName}')
  k -n "$name" get pods -l "app.kubernetes.io/name=$name" --field-selector "spec.nodeName=$node" --sort-by .metadata.creationTimestamp -o jsonpath='{.items[-1:].metadata.name}'
}
path=$(details "$details" netns)
show="/$name rules show --netns ${path:?the agent has not written where the network namespace of $details is}"
step "The rules in the network namespace of $details, with what they have counted"
# shellcheck disable=SC2086 # words
k -n "$name" exec "$(agent_of bookinfo "$details")" -- $show | shown

second_act
egress_act
third_act

step "To look further"
agent=$(agent_of bookinfo "$details")
note "$kubectl -n bookinfo describe pod $details" "$kubectl -n $name exec $agent -- $show"
note "$kubectl -n bookinfo annotate pod $details traffic.sidecar.istio.io/excludeInboundPorts=9080" \
  "    the edit is followed at once: ask again, and the peer is no longer 127.0.0.6" \
  "$kubectl -n bookinfo exec $productpage -c app -- /testapp get http://$service:9080/details/0" \
  "$kubectl -n $name logs $agent"
if [[ ${managed:-} ]]; then
  pod=$(kp get pods -l app=details -o jsonpath='{.items[-1:].metadata.name}')
  note "$kubectl -n $name exec $(agent_of bookinfo-plain "$pod") -- /$name sidecar logs bookinfo-plain/$pod" "$kubectl describe proxyprofile bookinfo"
fi
if [[ $existing ]]; then
  note "to remove everything:" "$kubectl delete namespace bookinfo bookinfo-plain${EGRESS:+ agents}" ${managed:+"$kubectl delete proxyprofile bookinfo${EGRESS:+ egress}"} \
    "helm -n $name uninstall $name" "$kubectl delete namespace $name"
else
  note "to remove everything:" "make demo-down"
fi
