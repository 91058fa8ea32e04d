#!/usr/bin/env bash
# After fchown a socket has two owners: routing sees the new one, netfilter the old one.
#
# A helper that opens sockets for a process of another user changes their owner, so that rules by user take them for that user's.
#
# Expected: fchown on a socket is refused or without effect, or all that looks at a socket's user follows it: `ip rule uidrange`, nft's `meta skuid`,
#   iptables' `-m owner`.
# Seen: of one and the same packet, the policy rule by user 1337 chose the route, and nft and iptables counted user 0: they look at the credentials of
#   whoever opened the file, and routing at the inode's owner.
# Source: Linux 6.18, net/socket.c, sockfs_setattr (sk_uid), beside net/netfilter/nft_meta.c, nft_meta_get_eval_skugid, and net/netfilter/xt_owner.c (f_cred)
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

debian ip iproute2 6.1.0-3
debian nft nftables 1.0.6-2+deb12u2
debian iptables-nft iptables 1.8.9-2
program send <<'END'
// Command send sends a datagram from a socket whose owner it changes before, and prints the address that the routes gave it.
package main

import (
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"syscall"
)

func main() {
	uid, err := strconv.Atoi(os.Args[1])
	check(err)
	dialer := net.Dialer{Control: func(_, _ string, socket syscall.RawConn) error {
		var err error
		if refused := socket.Control(func(fd uintptr) { err = syscall.Fchown(int(fd), uid, uid) }); refused != nil {
			return refused
		}
		return err
	}}
	conn, err := dialer.Dial("udp4", "10.7.7.7:9")
	check(err)
	_, err = conn.Write([]byte("x"))
	check(err)
	fmt.Println(conn.LocalAddr().(*net.UDPAddr).IP)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
END
echo "Linux $(uname -r)"

seen=$(inside <<'END'
ip addr add 10.0.0.1/32 dev lo
ip addr add 10.0.13.37/32 dev lo
ip route add 10.7.7.7 dev lo src 10.0.0.1
ip route add 10.7.7.7 dev lo src 10.0.13.37 table 100
ip rule add pref 100 uidrange 1337-1337 lookup 100
nft add table ip t
nft 'add chain ip t c { type filter hook output priority 0; }'
for uid in 0 1337; do
  nft add rule ip t c udp dport 9 meta skuid $uid counter
  iptables-nft -A OUTPUT -p udp --dport 9 -m owner --uid-owner $uid
done
./send 0
./send 1337
nft list chain ip t c | sed -n 's/.*skuid \([0-9]*\) counter packets \([0-9]*\) .*/\1:\2/p' | xargs
iptables-nft-save -c | sed -n 's/^.\([0-9]*\):.*--uid-owner \([0-9]*\)$/\2:\1/p' | xargs
END
)
{ read -r own; read -r changed; read -r nft; read -r iptables; } <<<"$seen"
expect "source address of root's socket" "$own" 10.0.0.1
expect "source address after fchown to 1337" "$changed" 10.0.13.37
expect "packets by user, counted by nft" "$nft" "0:2 1337:0"
expect "packets by user, counted by iptables" "$iptables" "0:2 1337:0"
