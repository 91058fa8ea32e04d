#!/usr/bin/env bash
# Runs every fuzz target of the root module, one after the other: `go test -fuzz` takes one target of one package at a time.
set -euo pipefail

seconds=${1:?usage: fuzz.sh DURATION}
cd "$(dirname "$0")/../.."

targets=$(grep -rHoE --include='*_test.go' --exclude-dir=hack --exclude-dir=test '^func Fuzz[A-Za-z0-9_]*' . | sed 's|/[^/]*:func |:|' | sort)
[[ -n $targets ]] || { echo 'no fuzz target found' >&2; exit 1; }
for target in $targets; do
  echo "fuzz ${target#*:} in ${target%%:*} for $seconds"
  go test "${target%%:*}" -run='^$' -fuzz="^${target#*:}\$" -fuzztime="$seconds"
done
