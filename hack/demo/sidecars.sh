# shellcheck shell=bash
# The demo's second act, a part of hack/demo.sh: the application without a proxy in its spec, and an upgrade of its proxies under load.

kp() { k -n bookinfo-plain "$@"; }

# manage switches the proxy manager on.
manage() {
  step "Second act: switching the proxy manager on (--set proxies.enabled=true)"
  install_agent --set proxies.enabled=true
}

start_plain() {
  step "The same application without a proxy in its spec, in a namespace that chooses the ProxyProfile bookinfo"
  sed -e 's|^  name: haproxy$|  name: bookinfo|' -e "s|localhost/haproxy:1|${DEMO_PROXY_IMAGE:-localhost/haproxy:1}|" \
    config/samples/proxy-profile.yaml | k apply -f - | shown
  sed "s|localhost/testapp:1|${DEMO_APP_IMAGE:-localhost/testapp:1}|" hack/demo/plain.yaml | k apply -f - | shown
  for app in details productpage; do kp rollout status "deploy/$app" --timeout 3m | tail -1 | shown; done
  kp get pods -o custom-columns='POD:.metadata.name,CONTAINERS:.spec.containers[*].name' | shown
  note "The agent runs a proxy for each, in the pod's sandbox and outside its spec:"
  kp get "$sidecars" | shown
  plain_service=$(kp get service details -o jsonpath='{.spec.clusterIP}')
  kp exec deploy/productpage -c app -- /testapp get "http://$plain_service:9080/details/0" | shown
  note "The application was reached through its proxy: the peer above is 127.0.0.6."
}

# hashes prints which versions of the profile the proxies are of, and whether all are ready.
hashes() { kp get "$sidecars" -o jsonpath='{range .items[*]}{.status.profileHash} {.status.ready}{"\n"}{end}' | sort -u; }

# count prints a number of the client's last line, or 0.
count() {
  local n
  n=$(tail -1 "$counted" | sed -n "s|.*\"$1\":\([0-9]*\).*|\1|p")
  echo "${n:-0}"
}

# requests waits until the client has made more requests than so many.
requests() {
  for _ in {1..100}; do
    if (($(count ok) + $(count failed) > $1)); then return; fi
    sleep 0.2
  done
  echo "the client has made no more than $1 requests" >&2
  return 1
}

upgrade() {
  local before began made
  step "Upgrading both proxies, while productpage makes a new connection to details every 10 ms"
  before=$(hashes)
  counted=$(mktemp)
  $kubectl -n bookinfo-plain exec deploy/productpage -c app -- /testapp dial -every 10ms -report 200ms -for 1m "http://$plain_service:9080/details/0" >"$counted" &
  client=$!
  requests 50
  began=$(date +%s%N)
  k patch proxyprofile bookinfo --type merge -p "{\"spec\":{\"container\":{\"env\":[{\"name\":\"VERSION\",\"value\":\"$began\"}]}}}" | shown
  until [[ $(hashes) =~ ^[^[:space:]]+\ true$ && $(hashes) != "$before" ]]; do
    if (($(date +%s%N) - began > 60 * 10 ** 9)); then
      echo "the proxies are not upgraded within a minute: $(hashes)" >&2
      return 1
    fi
    sleep 0.1
  done
  kp get "$sidecars" | shown
  requests $(($(count ok) + $(count failed) + 50))
  made=$(tail -1 "$counted")
  note "$(count ok) requests answered, $(count failed) lost"
  if [[ $made != *'"failed":0,'* ]]; then
    echo "the client says $made" >&2
    return 1
  fi
}

# end_client ends what upgrade has left.
end_client() {
  if [[ -n ${client:-} ]]; then kill "$client" 2>/dev/null || true; fi
  rm -f "${counted:-}"
}

second_act() {
  if k get nodes -o jsonpath='{.items[*].status.nodeInfo.containerRuntimeVersion}' | grep -q docker; then
    step "No second act: the proxy manager needs containerd or CRI-O on all nodes"
    return
  fi
  manage
  start_plain
  upgrade
  end_client
  managed=1
}
