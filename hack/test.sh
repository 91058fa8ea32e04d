#!/usr/bin/env bash
# Runs tests, a line a package; a package that fails is shown whole, a test that was skipped with its reason.
#
#   hack/test.sh go      the root module's and the plugin's. Also builds the agent without the proxy manager. With RACE=1 the packages that start
#                        goroutines are tested with the race detector, with RACE=all every package
#   hack/test.sh packages ./DIRECTORY/...
#                        those of packages, each in the module that its directory belongs to
#   hack/test.sh kit     those of the cluster kit, of what the end-to-end tests know without a cluster, of other kernels' and the matrix's results, and of
#                        the stand-in for Envoy
#   hack/test.sh chart   those of the chart; those of the admission policies want an API server, the cluster's if it was built. In CI it is built
#   hack/test.sh runtimes [VERSION...]
#                        those with real container runtimes, as root: the cluster's, and older releases of containerd (2.2.5 1.7.35). Each
#                        is built the first time: two minutes of CPU
#   hack/test.sh critest critest's, of the cluster's containerd and CRI-O, with the agent's NRI plugin
#
# Tests whose result depends on the machine, which make namespaces or run programs, come last and are never taken from the test cache.
set -euo pipefail

cd "$(dirname "$0")/.."
say() { printf '\n==> %s\n' "$*"; }

# report turns the output of `go test -v` into the lines that matter: of a package that failed, what its tests have said; of every
# package, why tests of it were skipped.
report() {
  local line reason='' test='' package=() tests=0 status=0
  local -A skipped=()
  while IFS= read -r line; do
    case $line in
      "ok  "$'\t'* | "?   "$'\t'*)
        printf '%s\n' "$line"
        for reason in "${!skipped[@]}"; do printf '      skipped: %d, because %s\n' "${skipped[$reason]}" "$reason"; done
        package=() skipped=() test='' ;;
      "FAIL"$'\t'*)
        printf '%s\n' "${package[@]}" "$line"
        package=() skipped=() test='' status=1 ;;
      "go: "*) printf '%s\n' "$line" ;;
      PASS | FAIL | "=== PAUSE"*) ;;
      "=== "*) test=$line ;;
      *"--- PASS: "*) if [[ $line == ---* ]]; then tests=$((tests + 1)); fi ;;
      *"--- SKIP: "*)
        reason=${reason:-they say so}
        skipped[$reason]=$((${skipped[$reason]:-0} + 1)) ;;
      *)
        if [[ $test ]]; then package+=("$test"); fi
        package+=("$line")
        test=''
        # The program under test may log behind the reason.
        if [[ $line =~ ^\ +[a-z0-9_]+\.go:[0-9]+:\ (.*) ]]; then reason=${BASH_REMATCH[1]}; fi ;;
    esac
  done
  # What is left was said by the go command itself.
  if ((${#package[@]})); then printf '%s\n' "${package[@]}"; fi
  printf '      %d tests passed\n' "$tests"
  return "$status"
}

# Only the race detector needs a C compiler. `make lint` vets.
source hack/quick.sh
flags=(-vet=off)

# run ARGUMENTS...: go test, reported.
run() { go "${module[@]}" test "${flags[@]}" -v "$@" 2>&1 | report; }

# run_racing ARGUMENTS...: run, with the race detector if it is wanted.
run_racing() {
  if [[ ${RACE:-} ]]; then CGO_ENABLED=1 run -race "$@"; else run "$@"; fi
}

# concurrent lists the packages of a module whose code starts goroutines, also by AfterFunc, a WaitGroup or an errgroup: the race detector finds little
# in others, and takes several times as long there.
concurrent() {
  local starts='^[[:space:]]*go [a-z(]|AfterFunc\(|\.Go\('
  if [[ ${RACE:-} == all ]]; then starts=''; fi
  (cd "$1" && grep -rlE --include='*.go' --exclude='*_test.go' --exclude-dir=hack --exclude-dir=e2e "$starts" . || true) |
    xargs -rn1 dirname | sort -u
}

# of_the_machine lists the packages whose tests make namespaces or run programs, by what they import.
of_the_machine() {
  (cd "$1" && grep -rlE --include='*_test.go' --exclude-dir=hack --exclude-dir=e2e '/kerneltest"|"os/exec"' . || true) | xargs -rn1 dirname | sort -u
}

# only LIST, except LIST: the lines of standard input that are in a list, and that are not.
only() { grep -xF "$1" || true; }
except() { grep -vxF "$1" || true; }

# on PACKAGES COMMAND...: runs a command with packages behind it. Without any, the go command would test the directory.
on() {
  local packages=$1
  shift
  # shellcheck disable=SC2086 # a list
  if [[ $packages ]]; then "$@" $packages; fi
}

# both DIRECTORY PATTERN [EXCEPT]: runs the tests of packages of a module, without those of packages below a directory.
both() {
  local module=(-C "$1") all machine pure racing beside pid said failed=0
  all=$(cd -P "$1" && go list -f '{{.Dir}}' "$2" | sed "s|^$PWD|.|" | grep -v "^./${3:-/}")
  machine=$(of_the_machine "$1" | only "$all")
  racing=$(concurrent "$1")
  pure=$(except "$machine" <<<"$all")
  on "$(only "$racing" <<<"$pure")" run_racing || failed=1
  on "$(except "$racing" <<<"$pure")" run || failed=1
  if [[ -z $machine ]]; then return "$failed"; fi
  say "those that make namespaces or run programs, always anew"
  # Most of their time they wait.
  exec {beside}< <(on "$(except "$racing" <<<"$machine")" run -count=1 -p 1 -parallel 8)
  pid=$!
  on "$(only "$racing" <<<"$machine")" run_racing -count=1 -p 3 -parallel 8 || failed=1
  mapfile -u "$beside" said
  printf '%s' "${said[@]}"
  wait "$pid" || failed=1
  exec {beside}<&-
  return "$failed"
}

# The chart lies outside its tests' module, where the test cache does not look.
chart_tests() {
  module=(-C hack)
  if [[ ${CI:-} ]]; then
    KUBEBUILDER_ASSETS=${KUBEBUILDER_ASSETS:-$(hack/cluster/kc build etcd kube-apiserver)}
    export KUBEBUILDER_ASSETS
    say "the tests of the chart, and of the admission policies on a real API server"
    run -count=1 ./tools/helm/...
    return
  fi
  say "the tests of the chart"
  run -count=1 ./tools/helm/{chart...,pairs}
  if [[ -z ${KUBEBUILDER_ASSETS:-} ]] && ! compgen -G "${XDG_CACHE_HOME:-$HOME/.cache}/istio-pod-network-controller/cluster/*/bin/kube-apiserver" >/dev/null; then
    say "left out: the tests of the admission policies, which want an API server. 'hack/cluster/kc build' and 'make demo' build one"
    return
  fi
  say "the tests of the admission policies, on a real API server"
  run -count=1 ./tools/helm/admission...
}

# runtime_tests PATTERN VERSION...: runtimes and their children see only their own processes, mounts and network, and end with the test.
runtime_tests() {
  local version dir status=0 log=build/test-runtimes.log
  if (($# == 1)); then set -- "$1" 2.2.5 1.7.35; fi
  CONTAINERDS=$(hack/cluster/kc build containerd containerd-shim-runc-v2 ctr runc cni/{bridge,host-local,loopback,portmap})
  PATH=$CONTAINERDS:$PATH
  for version in ${*:2}; do
    dir=$(hack/cluster/kc build --containerd "$version" containerd)
    CONTAINERDS+=:$dir
  done
  mkdir -p build
  IMAGES=$(dirname "$(hack/cluster/kc images | head -1)") CGROUP=containerd-test-$$
  export PATH CONTAINERDS IMAGES CGROUP
  say "the tests with real container runtimes"
  go test "${flags[@]}" -v -count=1 -timeout 1h -run "$1" -exec 'unshare --net --pid --fork --kill-child --mount-proc --propagation private' \
    ./runtime/nri ./agent 2>&1 | tee "$log" | report || status=1
  # A pattern that matches no test would pass.
  for dir in ${CONTAINERDS//:/ }; do
    version=$("$dir/containerd" --version | awk '{ print $3 }')
    if ! grep -q "^ *--- PASS: [^ ]*/$version " "$log"; then echo "no test has passed with containerd $version" && status=1; fi
  done
  find /sys/fs/cgroup -depth -type d -path "*/$CGROUP*" -exec rmdir {} +
  return "$status"
}

case ${1:-} in
  go)
    say "the unit and protocol tests${RACE:+, with the race detector} (a first build takes some minutes)"
    both . ./...
    say "the plugin of kubectl"
    module=(-C cmd/kubectl-pod_network)
    run ./...
    say "the agent without the proxy manager"
    go build -tags nosidecars,grpcnotrace -o /dev/null .
    go list -test -export -tags nosidecars,grpcnotrace ./agent/... . >/dev/null ;; # compiles the tests, and links nothing
  kit)
    say "the tests of the cluster kit"
    both hack ./... tools/helm/
    say "what the chaos test plans, how it judges, and the stand-in for Envoy"
    module=(-C test/e2e)
    run ./chaos ./xdsenvoy/... ;;
  packages)
    shift
    for pattern; do
      directory=${pattern%/...}
      if [[ ! -d $directory ]]; then echo "there is no directory $directory, of PKG=$pattern" >&2 && exit 2; fi
      module=$directory
      until [[ -e $module/go.mod ]]; do module=$(dirname "$module"); done
      both "$module" "./$(realpath --relative-to "$module" "$directory")${pattern#"$directory"}"
    done ;;
  chart) chart_tests ;;
  runtimes) runtime_tests '^TestContainerd' "${@:2}" ;;
  critest) CRIO=$(hack/cluster/kc build --runtime crio) && export CRIO && runtime_tests '^TestCritest' '' ;;
  *)
    echo "usage: hack/test.sh go|kit|chart|packages ./DIRECTORY/...|runtimes [VERSION...]|critest" >&2
    exit 2 ;;
esac
