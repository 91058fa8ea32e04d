#!/usr/bin/env bash
# Writes docs/reference from the code: hack/tools/reference.sh [OUTPUT]
set -euo pipefail

cd "$(dirname "$0")/../.."
usages=$(mktemp -d)
trap 'rm -rf "$usages"' EXIT
mkdir "$usages/bin"
go build -o "$usages/bin/" ./cmd/... # what it downloads is not to be among the programs' own words
for program in "$usages"/bin/*; do
  # -h ends with 0; the CNI plugin, which has no flags, introduces itself when CNI's environment is missing.
  env -u CNI_COMMAND "$program" -h >"$usages/$(basename "$program").txt" 2>&1 </dev/null
done
rm -r "$usages/bin"
go run ./test/refdocs -usages "$usages" . "${1:-docs/reference}"
