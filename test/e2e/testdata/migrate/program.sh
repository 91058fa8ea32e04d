#!/bin/sh
# program.sh MODE FLAVOUR programs the network namespace that it runs in as Istio does: redirect or tproxy, by native nftables or by iptables.
set -eu
dir=${0%/*}
/bin/ip -6 addr show dev lo | grep -q '::6/128' || /bin/ip -6 addr add ::6/128 dev lo nodad
if [ "$1" = tproxy ]; then
  for family in -4 -6; do
    /bin/ip $family rule add fwmark 1337 lookup 133
    /bin/ip $family route add local default dev lo table 133
  done
fi
if [ "$2" = native ]; then
  exec nft -f "$dir/$1.nft"
fi
restore() { # the machine's iptables may be of the other flavour
  if command -v "$1-nft-restore" >/dev/null; then "$1-nft-restore" --noflush; else "$1-restore" --noflush; fi
}
sed 's|LOOPBACK|127.0.0.1/32|; s|PASSTHROUGH|127.0.0.6/32|' "$dir/$1.rules" | restore iptables
sed 's|LOOPBACK|::1/128|; s|PASSTHROUGH|::6/128|' "$dir/$1.rules" | restore ip6tables
