#!/usr/bin/env bash
# `reject` with ICMP lets a local connect() wait for a second; `reject with tcp reset` ends it at once.
#
# A rule of the output hook is to refuse connections of the machine itself, quickly and clearly.
#
# Expected: both kinds of reject end connect() at once, with "connection refused".
# Seen: with ICMP, nft's default, blocking IPv4 sockets and all IPv6 sockets wait about 1 s, for the second SYN: the ICMP error comes while connect() still
#   holds the socket, and the kernel only counts it (LockDroppedIcmps in /proc/net/netstat). Sockets that do not block are told at once of IPv4, and after
#   1 s of IPv6.
# Source: Linux 6.18, net/ipv4/tcp_ipv4.c, tcp_v4_err, and net/ipv6/tcp_ipv6.c, tcp_v6_err; nft(8), REJECT STATEMENT
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

debian nft nftables 1.0.6-2+deb12u2
program dial <<'END'
// Command dial says whether refused connections wait for the second SYN. Of three tries the fastest one counts.
package main

import (
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"syscall"
	"time"
)

func main() {
	for _, address := range []string{"127.0.0.1", "::1"} {
		for _, port := range []uint16{81, 82} {
			to := netip.AddrPortFrom(netip.MustParseAddr(address), port)
			fmt.Printf("%s %d %s %s\n", address, port, waits(to, blocking), waits(to, notBlocking))
		}
	}
}

func waits(to netip.AddrPort, dial func(netip.AddrPort) error) string {
	best := time.Hour
	for range 3 {
		start := time.Now()
		if err := dial(to); !errors.Is(err, syscall.ECONNREFUSED) {
			log.Fatal(to, err)
		}
		best = min(best, time.Since(start))
	}
	if best > 900*time.Millisecond {
		return "waits"
	}
	return "at-once"
}

func blocking(to netip.AddrPort) error {
	family, address := syscall.AF_INET6, syscall.Sockaddr(&syscall.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, address = syscall.AF_INET, &syscall.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	return syscall.Connect(fd, address)
}

func notBlocking(to netip.AddrPort) error {
	_, err := net.DialTimeout("tcp", to.String(), 10*time.Second)
	return err
}
END
echo "Linux $(uname -r)"

seen=$(inside <<'END'
nft 'add table inet t; add chain inet t c { type filter hook output priority 0; }'
nft add rule inet t c tcp dport 81 reject
nft add rule inet t c tcp dport 82 reject with tcp reset
./dial
END
)
echo "address, port (81: ICMP, 82: RST), blocking socket, socket that does not block:"
echo "$seen"
expect "all of it" "$(xargs <<<"$seen")" "127.0.0.1 81 waits at-once 127.0.0.1 82 at-once at-once ::1 81 waits waits ::1 82 at-once at-once"
