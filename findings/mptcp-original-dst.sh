#!/usr/bin/env bash
# Behind a redirect, a listener written in Go cannot ask where an MPTCP client was going.
#
# A transparent proxy asks SO_ORIGINAL_DST of each accepted connection. net.Listen makes MPTCP listeners since Go 1.24, and they take TCP clients as well.
#
# Expected: MPTCP passes options of the IP level on to its first subflow, so the answer is the same for clients of both kinds.
# Seen: for a TCP client the answer is right. For an MPTCP client it is EOPNOTSUPP, though the redirect worked. A listener with SetMultipathTCP(false) gets
#   the right answer for both, since the client falls back to TCP.
# Source: Linux 6.18, net/mptcp/sockopt.c, mptcp_getsockopt_v4; Go 1.24 release notes, package net
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

debian nft nftables 1.0.6-2+deb12u2
program accept <<'END'
// Command accept dials port 80, which is redirected to its own listener, with each kind of socket, and says what the listener learns.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"syscall"
	"unsafe"
)

const soOriginalDst = 80

func main() {
	var usual net.ListenConfig // as net.Listen has it
	plain := usual
	plain.SetMultipathTCP(false)
	for name, config := range map[string]net.ListenConfig{"default": usual, "plain": plain} {
		for _, multipath := range []bool{false, true} {
			fmt.Printf("%s listener, client MPTCP %t: %s\n", name, multipath, accept(config, multipath))
		}
	}
}

func accept(config net.ListenConfig, multipath bool) string {
	l, err := config.Listen(context.Background(), "tcp4", "127.0.0.1:15001")
	check(err)
	defer l.Close()
	var dialer net.Dialer
	dialer.SetMultipathTCP(multipath)
	client, err := dialer.Dial("tcp4", "127.0.0.1:80")
	check(err)
	defer client.Close()
	conn, err := l.Accept()
	check(err)
	defer conn.Close()
	return originalDst(conn.(*net.TCPConn))
}

func originalDst(conn *net.TCPConn) (answer string) {
	raw, err := conn.SyscallConn()
	check(err)
	check(raw.Control(func(fd uintptr) {
		var a syscall.RawSockaddrInet4
		size := uint32(unsafe.Sizeof(a))
		_, _, failed := syscall.Syscall6(syscall.SYS_GETSOCKOPT, fd, syscall.IPPROTO_IP, soOriginalDst,
			uintptr(unsafe.Pointer(&a)), uintptr(unsafe.Pointer(&size)), 0)
		if failed != 0 {
			answer = failed.Error()
			return
		}
		port := (*[2]byte)(unsafe.Pointer(&a.Port))
		answer = fmt.Sprintf("%s:%d", net.IP(a.Addr[:]), int(port[0])<<8|int(port[1]))
	}))
	return answer
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
END
echo "Linux $(uname -r)"

seen=$(inside <<'END'
nft 'add table ip t; add chain ip t c { type nat hook output priority -100; }; add rule ip t c tcp dport 80 redirect to :15001'
./accept | sort
END
)
{ read -r tcp; read -r mptcp; read -r plain; read -r both; } <<<"$seen"
expect "${tcp%: *}" "${tcp##*: }" 127.0.0.1:80
expect "${mptcp%: *}" "${mptcp##*: }" "operation not supported"
expect "${plain%: *}" "${plain##*: }" 127.0.0.1:80
expect "${both%: *}" "${both##*: }" 127.0.0.1:80
