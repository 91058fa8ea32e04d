#!/usr/bin/env bash
# Of two nat chains with one priority the newer one decides.
#
# Two programs redirect a port, each in a table of its own, both with the priority that everybody takes for a redirect (-100).
#
# Expected: chains of one priority run in the order in which they were made, so the older redirect holds, or the order is undefined.
# Seen: the newer chain runs first, and its redirect holds: the older rule is not even counted. Made anew, with the same text, the older one wins again:
#   who restarts last, wins.
# Source: Linux 6.18, net/netfilter/core.c, nf_hook_entries_grow, which puts a new hook before others of its priority; nft(8) leaves the order open
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

debian nft nftables 1.0.6-2+deb12u2
echo "Linux $(uname -r)"

seen=$(inside <<'END'
make() { nft "add table ip $1; add chain ip $1 c { type nat hook output priority -100; }; add rule ip $1 c tcp dport 80 counter redirect to :$2"; }
ask() {
  (echo >/dev/tcp/127.0.0.1/80) 2>/dev/null || true
  nft list ruleset | awk '/^table/ { table = $3 } /counter packets 1 / { printf "%s ", table } END { print "" }'
  nft flush ruleset
}
make older 7001
make newer 7002
ask
make older 7001
make newer 7002
nft delete table ip older
make older 7001
ask
END
)
{ read -r first; read -r second; } <<<"$seen"
expect "the table that redirects" "$first" newer
expect "the table that redirects, when older was made anew" "$second" older
