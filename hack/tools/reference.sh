#!/usr/bin/env bash
# Writes docs/reference from the code: hack/tools/reference.sh [OUTPUT]
set -euo pipefail

cd "$(dirname "$0")/../.."
usages=$(mktemp -d)
trap 'rm -rf "$usages"' EXIT
for program in cmd/*/; do
  if [[ -f $program/go.mod ]]; then continue; fi # the plugin of kubectl: its commands are the agent's
  # -h ends with 0; the CNI plugin, which has no flags, introduces itself when CNI's environment is missing.
  env -u CNI_COMMAND go run "./$program" -h >"$usages/$(basename "$program").txt" 2>&1 </dev/null
done
go run ./test/refdocs -usages "$usages" . "${1:-docs/reference}"
