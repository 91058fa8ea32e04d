#!/usr/bin/env bash
# A policy rule without a priority is put before the rules that have one.
#
# Who adds `ip rule add fwmark 0x2 lookup 200` to rules that somebody has placed with care (`pref 1000`) thinks of an append: the new rule takes the
# last place before the table main, and the others go on deciding first.
#
# Expected: priority 32765, just before main, whatever other rules there are.
# Seen: 32765 only if there is no other rule. Otherwise the priority of the second rule in the list less one: behind `pref 1000` it is 999, and the new
#   rule decides before the one that was placed.
# Source: Linux 6.18, net/core/fib_rules.c, fib_default_rule_pref; ip-rule(8) says only that a priority should be given
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

debian ip iproute2 6.1.0-3
echo "Linux $(uname -r)"

alone=$(inside <<'END'
ip rule add fwmark 0x2 lookup 200
ip rule show | awk '/fwmark 0x2/ { print $1 + 0 }'
END
)
expect "priority without other rules" "$alone" 32765

list=$(inside <<'END'
ip rule add pref 1000 fwmark 0x1 lookup 133
ip rule add fwmark 0x2 lookup 200
ip rule show
END
)
echo "$list"
expect "priority beside a rule of 1000" "$(awk '/fwmark 0x2/ { print $1 + 0 }' <<<"$list")" 999
