#!/usr/bin/env bash
# Runs tests, a line a package; a package that fails is shown whole, a test that was skipped with its reason.
#
#   hack/test.sh go      the root module's, with the race detector
#   hack/test.sh kit     those of the cluster kit, and of what the end-to-end tests know without a cluster
#   hack/test.sh chart   those of the chart, which want an API server: it is built the first time
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

# run ARGUMENTS...: go test, reported.
run() { go "${module[@]}" test -v "$@" 2>&1 | report; }

# of_the_machine lists the packages of a module whose tests make namespaces or run programs, by what they import.
of_the_machine() {
  (cd "$1" && grep -rlE --include='*_test.go' --exclude-dir=hack --exclude-dir=test '/internal/kerneltest"|"os/exec"' .) |
    xargs -n1 dirname | sort -u
}

# both DIRECTORY FLAGS...: runs all tests of a module.
both() {
  local module=(-C "$1") all machine pure failed=0
  machine=$(of_the_machine "$1")
  all=$(cd -P "$1" && go list -f '{{.Dir}}' ./... | sed "s|^$PWD|.|")
  pure=$(grep -vxF "$machine" <<<"$all")
  shift
  # shellcheck disable=SC2086 # lists of packages
  run "$@" $pure || failed=1
  say "those that make namespaces or run programs, always anew"
  # shellcheck disable=SC2086
  run "$@" -count=1 -p 3 -parallel 8 $machine || failed=1 # most of their time they wait
  return "$failed"
}

# The chart lies outside its tests' module, where the test cache does not look.
chart_tests() {
  module=(-C hack/tools/helm)
  say "the tests of the chart"
  run -count=1 ./chart... ./pairs
  if [[ -z ${KUBEBUILDER_ASSETS:-} ]]; then
    if ! compgen -G "${XDG_CACHE_HOME:-$HOME/.cache}/istio-pod-network-controller/cluster/*/bin/kube-apiserver" >/dev/null; then
      say "building etcd and kube-apiserver for the tests of the admission policies: once, about five minutes on two cores"
    fi
    KUBEBUILDER_ASSETS=$(hack/cluster/kc build etcd kube-apiserver)
    export KUBEBUILDER_ASSETS
  fi
  say "the tests of the admission policies, on a real API server"
  run -count=1 ./admission...
}

case ${1:-} in
  go)
    say "the unit and protocol tests, with the race detector (a first build takes some minutes)"
    both . -race ;;
  kit)
    say "the tests of the cluster kit"
    both hack/cluster
    say "what the chaos test plans, and how it judges"
    module=(-C test/e2e)
    run ./chaos ;;
  chart) chart_tests ;;
  *)
    echo "usage: hack/test.sh go|kit|chart" >&2
    exit 2 ;;
esac
