#!/usr/bin/env bash
# Of two `ct zone set` that a packet meets the first one counts; of two `meta mark set` the last one.
#
# A general rule puts a packet into a zone of connection tracking, and a special one behind it means to correct that.
#
# Expected: the last statement wins, as with marks, priorities and every other `set`.
# Seen: the rule behind is counted, and changes nothing. The zone is that of the first, also if another table's chain sets it later.
# Source: Linux 6.18, net/netfilter/nft_ct.c, nft_ct_set_zone_eval, which leaves a packet alone that has an entry or a template of one; nft(8) does not say
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

debian nft nftables 1.0.6-2+deb12u2
debian conntrack conntrack 1:1.4.7-1+b2
echo "Linux $(uname -r)"

seen=$(inside <<'END'
nft 'add table ip t; add chain ip t first { type filter hook output priority -300; }; add chain ip t later { type filter hook output priority -290; }'
nft add rule ip t first udp dport 53 ct zone set 1 meta mark set 1
nft add rule ip t first udp dport 53 counter ct zone set 2 meta mark set 2
nft add rule ip t later udp dport 53 counter ct zone set 3 meta mark set 3
nft add chain ip t tracked '{ type filter hook output priority 0; }'
nft add rule ip t tracked ct mark set meta mark
echo x >/dev/udp/127.0.0.1/53
conntrack --dump --proto udp --dport 53 2>/dev/null | grep -o 'mark=[0-9]*\|zone=[0-9]*' | xargs
nft list table ip t | grep -c 'counter packets 1 '
END
)
{ read -r entry; read -r counted; } <<<"$seen"
expect "rules behind the first that were met" "$counted" 2
expect "entry of connection tracking" "$entry" "mark=3 zone=1"
