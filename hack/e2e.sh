#!/usr/bin/env bash
# Runs the end-to-end tests in a one-node cluster of their own. Arguments go to the test program: hack/e2e.sh -test.run TestX
# E2E_KEEP=1 uses the cluster that is up, or leaves the new one up, to look at it or to run again quickly.
# E2E_BACKENDS lists what programs the kernel, a round each in the same cluster: "nftables iptables" unless it says otherwise, "none" for no such round.
# E2E_HOOKS lists the ways to leave no window, a round each behind those, and "lifecycle", the chart's upgrade, rollback and removal:
# "nri required powercut wait cni lifecycle istio" unless it says otherwise. "istio" is beside real Istio, which is built first: see hack/istio.sh.
# There are three on request only: "core", which every change must pass (see CONTRIBUTING.md), "kubernetes", which goes over from the release that
# E2E_KUBERNETES names to the kit's, and "nodes", which comes last and adds nodes to the cluster.
# E2E_ENVOY is an Envoy for Istio's proxies in it: a stand-in unless it says otherwise. E2E_ISTIO_STARTS is how many pods' starts are measured: 2,
# E2E_ISTIO_RESTARTS how often istiod ends under load: 10.
# E2E_RUNTIME is the node's container runtime: containerd unless it says crio. E2E_CONTAINERD and E2E_KUBERNETES are other releases of these, such as
# 1.7.35 and 1.35.4, which are built first.
# E2E_KERNEL is one of Debian's kernels, such as 6.12, on which the cluster runs then, in a virtual machine with cgroup v2 alone: see hack/kernels.
# Name a few tests: everything takes many times longer there, by a clock that the tests' time limits do not see. E2E_BUILT=1 says, in the
# machine, that everything is built already. E2E_SECURITY is selinux or apparmor, whose policy that kernel enforces: see hack/kernels/cluster.sh.
# E2E_CHURN is how many pods come and go in one of them: 20 unless it says otherwise.
# E2E_SIDECAR_CHURN is how many pods whose proxies the agent runs come and go, also while the agent is updated; E2E_SIDECARS how many proxies are upgraded under load: 10
# each unless they say otherwise. Their full sizes are 100 and 30. E2E_ROLLED is how many proxies one roll-out replaces under load: 6 unless
# it says otherwise, 100 for figures, which go to the file that BENCH_JSON names.
# E2E_CHAOS_SEED chooses what the minute of chaos does: always the same unless it says otherwise; empty, a seed is drawn.
# E2E_POWERCUT_CUTS is how many power cuts there are, E2E_POWERCUT_SEED what they interrupt: 3, always the same, unless they say otherwise.
# E2E_ROTATED_PODS is how many pods have their proxies' secrets replaced under load, E2E_ROTATIONS how often: 3 and 1 unless they say otherwise.
# E2E_HELM=4 installs by Helm 4 instead of 3. E2E_HELM4 is its program, which is built unless it says otherwise; "lifecycle" has both.
# E2E_RELEASED is the commit whose chart is the one before in "lifecycle": the same chart with another version unless it says otherwise.
# E2E_RELEASE is how long each release that never becomes ready stays: 20s unless it says otherwise.
# E2E_BENCH=small runs the benchmarks behind the tests of the rounds nftables and nri, each once with small sizes: their figures say nothing, but
# they work when somebody wants figures.
# E2E_BURST is how many pods start at once in them, E2E_PODS the chart's pods.from, E2E_VALUES are more arguments to helm.
# E2E_OPTIMIZED=1 compiles the agent as a release is, for figures: it takes minutes longer, because nothing else is compiled so.
# A test that fails is a failure. Up to three that fail beside others run again, once and alone, to show whether others made them fail.
set -euo pipefail

cd "$(dirname "$0")/.."
name=istio-pod-network-controller kc=hack/cluster/kc keep=${E2E_KEEP:-}
read -ra backends <<<"${E2E_BACKENDS:-nftables iptables}"
hooks=" ${E2E_HOOKS-nri required powercut wait cni lifecycle istio} " runtime=${E2E_RUNTIME:-containerd}

# known VARIABLE VALUE KNOWN...: a word that is not known would run nothing, and pass.
known() {
  local variable=$1 value=$2
  shift 2
  if [[ " $* " != *" $value "* ]]; then
    echo "e2e: $variable names \"$value\": there are $*" >&2
    exit 2
  fi
}
for word in "${backends[@]}"; do known E2E_BACKENDS "$word" nftables iptables none; done
for word in $hooks; do known E2E_HOOKS "$word" core nri required powercut wait cni lifecycle istio kubernetes nodes; done
known E2E_RUNTIME "$runtime" containerd crio; known E2E_PODS "${E2E_PODS:-auto}" auto kubelet api
if [[ ${E2E_SECURITY:-} ]]; then known "E2E_SECURITY (with E2E_KERNEL)" "${E2E_KERNEL:+$E2E_SECURITY}" selinux apparmor; fi
if [[ ${E2E_BENCH:-} ]]; then known E2E_BENCH "$E2E_BENCH" small; fi
if ((${#backends[@]} == 0)); then known E2E_BACKENDS '' nftables iptables none; fi
if [[ ${backends[*]}$hooks =~ ^(none)?\ *$ ]]; then
  echo "e2e: E2E_BACKENDS and E2E_HOOKS name no round" >&2
  exit 2
fi

# not_of ROUND: a pattern of the tests that do not name the round in the line //e2e:rounds above them.
not_of() {
  awk -v round="$1" '
    $1 == "//e2e:rounds" { rounds = $0 " " }
    /^func Test.*\(t \*testing\.T\)/ {
      sub(/\(.*/, "", $2)
      if (rounds == "") { print "e2e: " $2 " names no round" >"/dev/stderr"; exit 1 }
      if (index(rounds, " " round " ") == 0) names = names "|" $2
      rounds = ""
    }
    END { print "^(" substr(names, 2) ")$" }' test/e2e/*_test.go
}

say() { printf '%(%T)T %s\n' -1 "$*"; }

# What a reader of a failed run wants to see; none of it may hide the failure.
show() {
  $kc kubectl get pods -A -o wide || true
  $kc kubectl -n "$name" logs "daemonset/$name" --tail=200 || true
  $kc kubectl -n "$name" logs "daemonset/$name" --previous --tail=50 2>/dev/null || true
}

# program LIMIT FILE ARGUMENT...: runs the test program where its source is. Its output goes to a file, too.
program() {
  local limit=$1 log=$2
  shift 2
  (cd test/e2e && exec "../../$kc" exec -- ../../build/e2e.test -test.v -test.timeout "$limit" "$@") 2>&1 | tee "$log"
}

# failures FILE: the tests that failed. Their own failed parts are indented.
failures() { sed -nE 's/^(.*[^ ])?--- FAIL: ([^ ]+).*/\2/p' "$1" | sort -u; }

# tests ROUND LIMIT ARGUMENT...: runs the tests of a round. If one to three fail beside others, these run again, once and alone: a defect fails again,
# a test that others disturb does not. Either is a failure.
tests() {
  local round=$1 limit=$2 log=build/e2e-$1 one failed skip
  shift 2
  if [[ ${E2E_BENCH:-} == small && ($round == nftables || $round == nri) ]]; then set -- -test.bench . -test.benchtime 1x "$@"; fi
  skip=$(not_of "$round")
  if program "$limit" "$log.log" -test.parallel 4 -test.skip "$skip" "$@"; then return; fi
  mapfile -t failed < <(failures "$log.log")
  # The test program says FAIL when all tests have run: behind a panic or its time limit, some have not. Benchmarks do not run again, and
  # what had no others beside it has run alone.
  if ((${#failed[@]} < 1 || ${#failed[@]} > 3)) || [[ " ${failed[*]}" == *" Benchmark"* ]] || ! grep -qx FAIL "$log.log" ||
    (($(grep -cE '^--- (PASS|FAIL): ' "$log.log") < 2)); then
    return 1
  fi
  show >"$log-cluster.log" 2>&1
  $kc kubectl delete namespaces --selector e2e-test --ignore-not-found --timeout 2m || true
  say "running again, alone: ${failed[*]} (the cluster's state behind the failure is in $log-cluster.log)"
  program "$limit" "$log-alone.log" "$@" -test.v -test.parallel 1 -test.skip '^$' -test.run "^($(IFS='|' && echo "${failed[*]}"))\$" || true
  for one in "${failed[@]}"; do
    if grep -q -- "^--- PASS: $one " "$log-alone.log"; then
      echo "e2e: $one ($round) has failed beside others, and passes alone" >&2
    else
      echo "e2e: $one ($round) has failed beside others, and alone" >&2
    fi
  done
  return 1
}

finish() {
  local status=$?
  trap - EXIT
  if ((status != 0)) && $kc status >/dev/null 2>&1; then show; fi
  if [[ -z $keep && -n ${mine:-} ]]; then
    say "ending the cluster"
    $kc down || status=1
  fi
  exit $status
}

# configuration tells the files of the node's CNI configuration, and what is in each, byte for byte.
configuration() { $kc node -- sh -c 'cd /etc/cni/net.d && sha256sum -- *'; }

# wait_left waits until the node is as it was before the CNI plugin was chained, and starts a pod.
wait_left() {
  local deadline=$((SECONDS + 60))
  until [[ $(configuration) == "$before" ]]; do
    if ((SECONDS > deadline)); then
      echo "e2e: the agent has left, and the node's CNI configuration is not what it was:" >&2
      $kc node -- sh -c 'head -n 100 /etc/cni/net.d/*' >&2
      return 1
    fi
    sleep 0.5
  done
  $kc kubectl -n default run after --image=localhost/testapp:1 --restart=Never -- serve -http=8080
  $kc kubectl -n default wait --for=condition=Ready pod/after --timeout=1m
  $kc kubectl -n default delete pod after --now
}

# leave_chain sees that the CNI plugin goes from the node's configuration when it is turned off. "lifecycle" sees that it goes with the chart.
leave_chain() {
  if [[ $(configuration) == "$before" ]]; then
    echo "e2e: the CNI plugin is in no configuration of the node, which is nothing to be taken out of" >&2
    exit 1
  fi
  say "turning the CNI hook off"
  hack/deploy.sh --set hooks.nri.mode=off --set hooks.cni.mode=off
  wait_left
}

# lifecycle upgrades, rolls back and removes the chart under load. No version is released yet: the one before is the same program under
# another tag, in this chart or that of E2E_RELEASED, packaged with that version.
lifecycle() {
  local chart=chart/$name charts=$PWD/build/charts version
  version=$(awk '$1 == "appVersion:" { gsub("\"", "", $2); print $2 }' "$chart/Chart.yaml")
  rm -rf "$charts" && mkdir -p "$charts"
  if [[ -n ${E2E_RELEASED:-} ]]; then
    git archive "$E2E_RELEASED" "$chart" | tar -x -C "$charts"
    chart=$charts/$chart
  fi
  "$HELM" package "$chart" --version 0.0.9 --app-version 0.0.9 --destination "$charts" >/dev/null
  $kc load build/image.tar
  $kc node -- ctr -n k8s.io images tag --force "localhost/$name:$version" "localhost/$name:0.0.9" >/dev/null
  say "upgrading, rolling back and removing the chart"
  E2E_FRESH=$fresh E2E_CHART_BEFORE=$charts/$name-0.0.9.tgz E2E_CHART=$PWD/chart/$name tests lifecycle 15m "${asked[@]}"
}

# build makes everything that is compiled.
build() {
  local preflight=(build images up e2e)
  if [[ $runtime == crio ]]; then preflight+=(crio); fi
  if [[ ${E2E_KERNEL:-} ]]; then preflight+=(kernels); fi
  hack/preflight.sh "${preflight[@]}"
  say "building the image and the tests"
  if [[ ${E2E_HELM:-3} == 4 ]]; then
    HELM=${E2E_HELM4:-$(helm4)}
  elif [[ -z ${HELM:-} || ! -x ${HELM:-} ]]; then
    HELM=$(make -s print-helm)
  fi
  export HELM
  local quick=1
  if [[ ${E2E_OPTIMIZED:-} ]]; then quick=; fi
  make -s image QUICK=$quick
  if [[ " ${backends[*]} " == *" iptables "* ]]; then make -s image-iptables QUICK=$quick; fi
  hack/quick.sh go -C test/e2e test -vet=off -c -o "$PWD/build/e2e.test" .
  hack/cluster/kc build --runtime "$runtime"
  hack/cluster/kc images
}

# helm4 builds Helm 4 of the version that the chart's tests have, and prints where.
helm4() {
  local version dir
  version=$(awk '$1 == "helm.sh/helm/v4" { print $2 }' hack/go.mod)
  dir=${XDG_CACHE_HOME:-$HOME/.cache}/$name/tools/helm4-$version
  if [[ ! -x $dir/helm ]]; then GOBIN=$dir CGO_ENABLED=0 hack/quick.sh go install "helm.sh/helm/v4/cmd/helm@$version" >&2; fi
  echo "$dir/helm"
}
if [[ -z ${E2E_BUILT:-} ]]; then
  build
  if [[ ${E2E_KERNEL:-} ]]; then
    say "starting the virtual machine"
    E2E_POLICY=${E2E_SECURITY:+$(hack/kernels/security.sh)}
    export E2E_ARGUMENTS="$*" E2E_POLICY
    hack/quick.sh go -C hack run ./kernels ${E2E_SECURITY:+-append "security=$E2E_SECURITY log_buf_len=4M audit_backlog_limit=8192"} \
      -script hack/kernels/cluster.sh "$PWD" "$E2E_KERNEL"
    exit
  fi
fi
if [[ $hooks == *" istio "* && -z ${E2E_ISTIO:-} ]]; then
  say "building Istio"
  E2E_ISTIO=$(hack/istio.sh)
fi
export E2E_ISTIO=${E2E_ISTIO:-}
if [[ $hooks == *" lifecycle "* && -z ${E2E_HELM4:-} ]]; then
  say "building Helm 4"
  E2E_HELM4=$(helm4)
  export E2E_HELM4
fi

if $kc status >/dev/null 2>&1; then
  if [[ -z $keep ]]; then
    echo "e2e: a cluster is up already: end it with '$kc down', or use it with E2E_KEEP=1" >&2
    exit 1
  fi
else
  say "starting the cluster"
  mine=1
  trap finish EXIT
  $kc up --runtime "$runtime" --containerd "${E2E_CONTAINERD:-}" --kubernetes "${E2E_KUBERNETES:-}"
fi
trap finish EXIT

# What the node has before the chart was ever installed. With a cluster of before it is what is there now.
fresh=$PWD/build/fresh.json
(cd test/e2e && E2E_RECORD=$fresh exec ../../$kc exec -- ../../build/e2e.test)

servers=() # name servers: containerd reports those of a sandbox
if [[ $runtime == crio ]]; then servers=(--set 'agent.extraArgs={--cluster-dns=10.96.0.10}'); fi
for backend in "${backends[@]}"; do
  if [[ $backend == none ]]; then continue; fi
  say "installing the agent with the backend $backend"
  hack/deploy.sh --set "redirection.backend=$backend" --set redirection.select=either --set hooks.nri.mode=off --set hooks.cni.mode=off --set inspect.enabled=true "${servers[@]}"
  say "running the tests"
  E2E_BACKEND=$backend tests "$backend" 30m -test.parallel 8 "$@"
done

before=$(configuration)
# hook WAY VALUES...: installs the agent in one of the ways to leave no window, and runs the tests of that way.
hook() {
  local way=$1
  shift
  if [[ $hooks != *" $way "* ]]; then return; fi
  say "installing the agent so that no pod starts without its rules: $way"
  # shellcheck disable=SC2086 # words
  hack/deploy.sh --set redirection.backend=nftables --set redirection.select=either "$@" ${E2E_PODS:+--set pods.from=$E2E_PODS} ${E2E_VALUES:-}
  say "running the tests of first packets"
  E2E_HOOK=$way tests "$way" 30m "${asked[@]}"
}
asked=("$@")
export E2E_CHAOS_SEED=${E2E_CHAOS_SEED-4} E2E_POWERCUT_SEED=${E2E_POWERCUT_SEED-193}
# The proxy manager is on in one of them: what is tested there holds beside it as well.
hook nri --set hooks.nri.mode=required --set hooks.startupTaint.enabled=true \
  --set proxies.enabled=true --set 'proxies.secrets={e2e-registry,e2e-tls,e2e-late}' --set 'proxies.tokenAudiences={e2e-mesh}' \
  --values test/e2e/testdata/shared-values.yaml
hook core --set hooks.nri.mode=required --set hooks.startupTaint.enabled=true --set pods.readAsNode=true --set inspect.enabled=true --set proxies.enabled=true
hook kubernetes --set hooks.nri.mode=required --set proxies.enabled=true
# The chaos has every trouble of TestAlwaysNothingBypassesTheProxyInTrouble.
hook required --set hooks.nri.mode=required --set admission.requiredPlugins=true
# With proxies that the agent runs: they are gone with the power, too.
hook powercut --set hooks.nri.mode=required --set admission.requiredPlugins=true --set proxies.enabled=true
# Its tests read no metrics, so that these can be by TLS.
hook wait --set hooks.nri.mode=off --set admission.waitContainer=true --set monitoring.secure=true
# The trouble starts enough pods to see what becomes of first packets.
hook cni --set hooks.nri.mode=off --set hooks.cni.mode=install

if [[ $hooks == *" cni "* ]]; then leave_chain; fi
if [[ $hooks == *" lifecycle "* ]]; then lifecycle; fi
# Last: Istio's CNI plugin does not leave the node as it was.
if [[ $hooks == *" istio "* ]]; then $kc load "$E2E_ISTIO"/*.tar; fi
hook istio --set hooks.nri.mode=required --set proxies.enabled=true
if [[ $hooks == *" nodes "* ]] && ! $kc node --node node2 -- true 2>/dev/null; then $kc add-node; fi
hook nodes --set hooks.nri.mode=required --set admission.requiredPlugins=true --set hooks.startupTaint.enabled=true --set inspect.enabled=true --set proxies.enabled=true
