# shellcheck shell=bash
# The demo's act about egress, a part of hack/demo.sh: a pod that reaches only the names that its namespace allows, without a mesh.

start_agent() {
  if [[ ! $existing ]]; then
    k apply -f hack/cluster/samples/dns.yaml >/dev/null
    k -n kube-system rollout status deploy/dns --timeout 3m >/dev/null
  fi
  step "Egress: a pod that may connect to the names in an annotation of its namespace (config/samples/proxy-profile-egress.yaml)"
  sed -e "s|localhost/haproxy:1|${DEMO_PROXY_IMAGE:-localhost/haproxy:1}|" config/samples/proxy-profile-egress.yaml | k apply -f - | shown
  k annotate namespace agents --overwrite "pod-network-controller.istio.io/egress-names=$1,$2" | shown
  sed -e "s|localhost/testapp:1|${DEMO_APP_IMAGE:-localhost/testapp:1}|" hack/demo/egress.yaml | k apply -f - | shown
  k -n agents wait --for=condition=Ready pod/agent --timeout 3m >/dev/null
}

# asks has the pod ask for a URL, and prints the answer's beginning, or why there is none.
asks() { { k -n agents exec agent -- /testapp get "$1" 2>&1 || true; } | head -c 200 | tr -s '\n ' ' ' | sed "s|^|      $1: |;s|\$|\n|"; }

egress_act() {
  local lines='' allowed=details.bookinfo-plain.svc.cluster.local api=kubernetes.default.svc.cluster.local refused=details.bookinfo.svc.cluster.local
  if [[ ! ${EGRESS:-} || ! ${managed:-} ]]; then return; fi
  start_agent "$allowed" "$api"
  step "Two names that it may reach, by HTTP and by TLS"
  asks "http://$allowed:9080/"
  asks "https://$api/version"
  step "And one that it may not"
  asks "http://$refused:9080/"
  asks "https://$refused:9080/"
  note "The proxy's log:"
  for _ in {1..50}; do
    lines=$(k -n "$name" exec "$(agent_of agents agent)" -- "/$name" sidecar logs agents/agent | grep "refused:.*$refused" | tail -2) || true
    if [[ $lines == *$'\n'* ]]; then break; fi
    sleep 0.1
  done
  shown <<<"$lines"
}
