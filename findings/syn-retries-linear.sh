#!/usr/bin/env bash
# A SYN that gets no answer is sent again after 1, 2, 3 and 4 seconds, not after 1, 3 and 7.
#
# How long a client waits for a server whose port is not reachable for a moment (dropped by a rule, say) follows from this row.
#
# Expected: the time between two SYNs doubles: within the first 5.5 s there are three, at 0, 1 and 3 s.
# Seen: since Linux 6.5 the first four retries come every second: there are six, at 0, 1, 2, 3, 4 and 5 s. With net.ipv4.tcp_syn_linear_timeouts=0 there are
#   three again.
# Source: Linux 6.18, Documentation/networking/ip-sysctl.rst, tcp_syn_linear_timeouts (default 4), net/ipv4/tcp_timer.c
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

debian nft nftables 1.0.6-2+deb12u2
echo "Linux $(uname -r)"

seen=$(inside <<'END'
nft 'add table ip t; add chain ip t c { type filter hook output priority 0; }; add rule ip t c tcp dport 81 counter drop'
count() {
  timeout 5.5 bash -c 'echo >/dev/tcp/127.0.0.1/81' 2>/dev/null || true
  nft -n list chain ip t c | sed -n 's/.*packets \([0-9]*\) .*/\1/p'
  nft flush chain ip t c
  nft add rule ip t c tcp dport 81 counter drop
}
cat /proc/sys/net/ipv4/tcp_syn_linear_timeouts
count
echo 0 >/proc/sys/net/ipv4/tcp_syn_linear_timeouts
count
END
)
{ read -r default; read -r linear; read -r doubled; } <<<"$seen"
expect "net.ipv4.tcp_syn_linear_timeouts in a new namespace" "$default" 4
expect "SYNs within 5.5 s" "$linear" 6
expect "SYNs within 5.5 s, with 0" "$doubled" 3
