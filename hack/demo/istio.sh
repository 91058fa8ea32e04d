# shellcheck shell=bash
# The demo's third act, a part of hack/demo.sh: Istio's bookinfo in a real mesh, whose proxies are Istio's own and stand in no pod's spec.

ki() { k -n bookinfo-istio "$@"; }

# workload NAME VERSION [URL...] prints a pod of bookinfo with its ServiceAccount and Service. It asks the URLs for each request.
workload() {
  local app=$1 version=$2
  shift 2
  cat <<END
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: $app}
---
apiVersion: v1
kind: Service
metadata: {name: $app}
spec:
  selector: {app: $app}
  ports: [{name: http, port: 9080}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: $app-$version}
spec:
  selector: {matchLabels: {app: $app, version: $version}}
  template:
    metadata: {labels: {app: $app, version: $version}}
    spec:
      serviceAccountName: $app
      readinessGates: [{conditionType: pod-network-controller.istio.io/initialized}]
      terminationGracePeriodSeconds: 1
      containers:
        - {name: app, image: localhost/testapp:1, args: [serve, -http=9080, -banner=$app-$version, "-ask=$(IFS=, && echo "$*")"]}
END
}

install_istio() {
  local dir
  step "Third act: real Istio (the first time istiod is built: ten minutes on two cores)"
  dir=$(hack/istio.sh)
  hack/cluster/kc load "$dir"/*.tar
  k apply -f hack/cluster/samples/dns.yaml >/dev/null
  hack/cluster/kc exec -- "$HELM" upgrade --install istio-base "$dir"/charts/base-*.tgz -n istio-system --create-namespace >/dev/null
  hack/cluster/kc exec -- "$HELM" upgrade --install istiod "$dir"/charts/istiod-*.tgz -n istio-system --wait --timeout 3m \
    --set global.hub=localhost,global.tag=istio,autoscaleEnabled=false,pilot.resources.requests.memory=128Mi >/dev/null
  install_agent --set proxies.enabled=true --set proxies.istio.enabled=true --set proxies.istio.image=localhost/proxyv2:outside
  k -n istio-system get pods | shown
}

start_mesh() {
  local app
  step "Bookinfo, with nothing of Istio in its pods' specs; only mTLS is taken"
  k create namespace bookinfo-istio --dry-run=client -o yaml | k apply -f - >/dev/null
  k label namespace bookinfo-istio sidecar-profile=istio --overwrite >/dev/null
  k annotate namespace bookinfo-istio pod-network-controller.istio.io/sidecar=istio --overwrite >/dev/null
  k get proxyprofile istio | shown # the chart's
  ki delete virtualservice reviews --ignore-not-found >/dev/null # of an earlier run
  {
    workload ratings v1
    workload details v1
    workload reviews v1
    workload reviews v2 http://ratings:9080/
    workload reviews v3 http://ratings:9080/
    workload productpage v1 http://details:9080/ http://reviews:9080/
    printf -- '---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default}\nspec: {mtls: {mode: STRICT}}\n'
  } | ki apply -f - >/dev/null
  for app in ratings-v1 details-v1 reviews-v1 reviews-v2 reviews-v3 productpage-v1; do ki rollout status "deploy/$app" --timeout 3m >/dev/null; done
  ki get pods -o custom-columns='POD:.metadata.name,CONTAINERS:.spec.containers[*].name,ACCOUNT:.spec.serviceAccountName' | shown
  ki get "$sidecars" | shown
}

# ask prints productpage's answer from one application.
ask() { ki exec deploy/productpage-v1 -c app -- /testapp "$@"; }

show_mesh() {
  local target=http://reviews:9080/
  step "productpage asks details: both proxies show the certificate of their pod's ServiceAccount"
  ask get http://details:9080/ | grep -o '[A-Z][A-Za-z]*=spiffe://[^;"]*' | shown
  note "By is who was asked, URI who has asked, as the proxy of details has told its application."
  step "A VirtualService: all reviews by v3"
  ask dial -n 30 -report 0 "$target" | sed 's/.*"answers":\({[^}]*}\).*/before: \1/' | shown
  printf '%s\n' 'apiVersion: networking.istio.io/v1' 'kind: DestinationRule' 'metadata: {name: reviews}' \
    'spec: {host: reviews, subsets: [{name: v3, labels: {version: v3}}]}' --- \
    'apiVersion: networking.istio.io/v1' 'kind: VirtualService' 'metadata: {name: reviews}' \
    'spec: {hosts: [reviews], http: [{route: [{destination: {host: reviews, subset: v3}}]}]}' | ki apply -f - >/dev/null
  for _ in {1..50}; do
    if ! ask dial -n 30 -report 0 "$target" | grep -q 'reviews-v[12]'; then break; fi
    sleep 0.2
  done
  ask dial -n 30 -report 0 "$target" | sed 's/.*"answers":\({[^}]*}\).*/after: \1/' | shown
}

third_act() {
  if [[ ! ${ISTIO:-} ]]; then return; fi
  if [[ $existing || ! ${managed:-} ]]; then
    step "No third act: it needs the demo's own cluster"
    return
  fi
  install_istio
  start_mesh
  show_mesh
}
