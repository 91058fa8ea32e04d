#!/usr/bin/env bash
# net.ipv4.tcp_migrate_req saves the connections that wait for a closing listener, but not those of MPTCP clients.
#
# A server is replaced by its successor: both listen with SO_REUSEPORT, and the old one closes its listener. With tcp_migrate_req=1 the kernel hands what
# waits in the old queue to the new listener.
#
# Expected: the setting holds for every client of the listener.
# Seen: all of 20 TCP clients are served by the successor, also where the listener speaks MPTCP (Go's default). All of 20 MPTCP clients lose their
#   connection, although the successor accepts 20. Without the setting all are lost.
# Source: Linux 6.18, Documentation/networking/ip-sysctl.rst, tcp_migrate_req; net/ipv4/inet_connection_sock.c, inet_csk_listen_stop
# Date: 2026-11-28
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
source "$(dirname "$0")/common.sh"

program handover <<'END'
// Command handover closes a listener in whose queue 20 clients wait, beside a second one, and counts clients that the second one has served.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"syscall"
	"time"
)

const soReusePort = 15

func main() {
	for _, kind := range []struct{ listener, client bool }{{false, false}, {true, false}, {true, true}} {
		old := listen(kind.listener)
		var dialer net.Dialer
		dialer.SetMultipathTCP(kind.client)
		var clients []net.Conn
		for range 20 {
			client, err := dialer.Dial("tcp4", "127.0.0.1:7001")
			check(err)
			clients = append(clients, client)
		}
		next := listen(kind.listener)
		check(old.Close())
		serve(next)
		served := 0
		for _, client := range clients {
			check(client.SetDeadline(time.Now().Add(time.Second)))
			if n, _ := client.Read(make([]byte, 1)); n == 1 {
				served++
			}
			client.Close()
		}
		check(next.Close())
		fmt.Printf("listener MPTCP %t, clients MPTCP %t: %d of 20 served\n", kind.listener, kind.client, served)
	}
}

func listen(multipath bool) *net.TCPListener {
	config := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		return socket.Control(func(fd uintptr) { check(syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, soReusePort, 1)) })
	}}
	config.SetMultipathTCP(multipath)
	l, err := config.Listen(context.Background(), "tcp4", "127.0.0.1:7001")
	check(err)
	return l.(*net.TCPListener)
}

// serve writes a byte to each connection that waits, until none comes for a second.
func serve(l *net.TCPListener) {
	for {
		check(l.SetDeadline(time.Now().Add(time.Second)))
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte("x"))
		conn.Close()
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
END
echo "Linux $(uname -r)"

# handover SETTING: what is seen with net.ipv4.tcp_migrate_req, in one line.
handover() {
  inside <<END | sed 's/.*: //' | xargs
echo $1 >/proc/sys/net/ipv4/tcp_migrate_req
./handover
END
}
echo "TCP listener and clients, MPTCP listener with TCP clients, MPTCP listener and clients:"
expect "with tcp_migrate_req=0" "$(handover 0)" "0 of 20 served 0 of 20 served 0 of 20 served"
expect "with tcp_migrate_req=1" "$(handover 1)" "20 of 20 served 20 of 20 served 0 of 20 served"
