#!/usr/bin/env bash
# iptables' `! --uid-owner` matches packets without an owner, and the `skuid !=` that iptables-translate makes of it does not.
#
# The kernel's own packets, such as the RST for a closed port, leave by the output hook, too. No process has sent them.
#
# Expected: "any user but 1337" means the same in both, since one is the translation of the other.
# Seen: a process of user 1337 dials a closed port. Neither rule matches its SYN. The kernel's RST is matched by iptables' rule and not by nft's: without a
#   user to compare, iptables' inverted match is true, and nft's expression ends the rule.
# Source: Linux 6.18, net/netfilter/xt_owner.c, owner_mt, beside net/netfilter/nft_meta.c, nft_meta_get_eval_skugid; iptables-translate(8)
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

debian nft nftables 1.0.6-2+deb12u2
debian iptables-translate iptables 1.8.9-2
echo "Linux $(uname -r)"

seen=$(inside <<'END'
rule='-A OUTPUT -p tcp -m owner ! --uid-owner 1337'
iptables-nft $rule
iptables-translate $rule | tail -n 1 | tee translated
nft 'add table ip t; add chain ip t c { type filter hook output priority 0; }'
nft "$(sed "s/^nft //; s/^'//; s/'$//; s/ip filter OUTPUT/ip t c/" translated)"
setpriv --reuid 1337 --regid 1337 --clear-groups bash -c 'echo >/dev/tcp/127.0.0.1/81' 2>dial || true
iptables-nft-save -c | sed -n 's/^.\([0-9]*\):.*! --uid-owner 1337$/\1/p'
nft list chain ip t c | sed -n 's/.*skuid != 1337 counter packets \([0-9]*\) .*/\1/p'
END
)
{ read -r translated; read -r iptables; read -r nft; } <<<"$seen"
echo "iptables -A OUTPUT -p tcp -m owner ! --uid-owner 1337 is translated to: $translated"
expect "packets that iptables' rule matches" "$iptables" 1
expect "packets that nft's rule matches" "$nft" 0
