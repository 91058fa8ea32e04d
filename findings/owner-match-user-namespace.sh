#!/usr/bin/env bash
# From outside of its user namespace, a network namespace takes nft's `skuid` and refuses iptables' `-m owner` and `ip rule uidrange`.
#
# A node agent writes rules into the namespace of a pod with `hostUsers: false`. It is root of the node, and may do everything there.
#
# Expected: all three work, or none does; where they do, ids count as the writer sees them (101337), and the pod's (1337) have to be mapped by hand.
# Seen: iptables, legacy and nft, says "Invalid argument", and ip "No permission to set uid". nft takes its rule and compares the id as the pod sees it: 1337
#   matches, 101337 does not. So the two backends of one program differ by more than speed.
# Source: Linux 6.18, net/netfilter/xt_owner.c, owner_check, net/core/fib_rules.c, fib_nl2rule, net/netfilter/nft_meta.c, nft_meta_get_eval_skugid
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

debian ip iproute2 6.1.0-3
debian nft nftables 1.0.6-2+deb12u2
debian iptables-legacy iptables 1.8.9-2
echo "Linux $(uname -r)"

unshare --user --net sleep 60 &
pod=$!
trap 'kill $pod; rm -rf "$dir"' EXIT
until [[ $(readlink /proc/$pod/ns/net) != "$(readlink /proc/self/ns/net)" ]]; do sleep 0.05; done
echo '0 100000 65536' >/proc/$pod/uid_map
echo '0 100000 65536' >/proc/$pod/gid_map
within() { nsenter --net --target $pod "$@"; }

# refusal COMMAND...: what a command says that fails.
refusal() { if within "$@" >"$dir/said" 2>&1; then echo taken; else grep -o -m 1 'Invalid argument\|No permission to set uid' "$dir/said"; fi; }

within ip link set lo up
expect "iptables-nft -m owner" "$(refusal iptables-nft -A OUTPUT -m owner --uid-owner 1337)" "Invalid argument"
expect "iptables-legacy -m owner" "$(refusal iptables-legacy -A OUTPUT -m owner --uid-owner 1337)" "Invalid argument"
expect "ip rule uidrange" "$(refusal ip rule add uidrange 1337-1337 lookup 100)" "No permission to set uid"
expect "nft skuid" "$(refusal nft 'add table inet t; add chain inet t c { type filter hook output priority 0; };
  add rule inet t c meta skuid 1337 counter; add rule inet t c meta skuid 101337 counter')" taken
nsenter --user --net --target $pod --setuid 1337 --setgid 1337 bash -c 'echo >/dev/tcp/127.0.0.1/81' 2>/dev/null || true
seen=$(within nft list chain inet t c | sed -n 's/.*skuid \([0-9]*\) counter packets \([0-9]*\) .*/\1:\2/p' | xargs)
expect "packets of the pod's user 1337, by id in the rule" "$seen" "1337:1 101337:0"
