#!/usr/bin/env bash
# Runs every finding, or those named, and prints one line each: the finding still holds, or it has changed. The output of one that has changed follows.
#
#   findings/run.sh [NAME...]
set -euo pipefail

cd "$(dirname "$0")"
if ((EUID)); then echo "needs root, because it makes network namespaces" >&2 && exit 2; fi
if (($# == 0)); then mapfile -t names < <(grep -l '^# Expected: ' ./*.sh); else names=("${@/%/.sh}"); fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
changed=0
for file in "${names[@]}"; do
  name=$(basename "$file" .sh)
  if bash "./$name.sh" >"$log" 2>&1; then
    printf 'holds    %-28s %s\n' "$name" "$(sed -n '2s/^# //p' "$name.sh")"
  else
    changed=$((changed + 1))
    printf 'CHANGED  %s\n' "$name"
    sed 's/^/    /' "$log"
  fi
done
echo "$((${#names[@]} - changed)) hold, $changed changed"
((changed == 0))
