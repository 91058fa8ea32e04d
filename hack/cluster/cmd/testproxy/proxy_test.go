package main

import (
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"istio-pod-network-controller/test/kerneltest"
)

// asProxy makes the test binary be the proxy, so that it can run as another user in another namespace.
const asProxy = "TESTPROXY=1"

func TestMain(m *testing.M) {
	if os.Getenv("TESTPROXY") == "1" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestValidate_withoutRules_complains(t *testing.T) {
	command := exec.Command("/proc/self/exe", "validate", "-within=300ms")
	command.Env = []string{asProxy}
	var out []byte
	err := kerneltest.New(t).Inside(func() (err error) {
		out, err = command.CombinedOutput()
		return err
	})
	if err == nil || !strings.Contains(string(out), "127.0.0.1 -> 127.0.0.6:15002 does not arrive at the proxy") {
		t.Errorf("error %v: %s", err, out)
	}
}

func TestJournalRemembersTheLastOnes(t *testing.T) {
	j := newJournal(io.Discard)
	for range remembered + 2 {
		j.add(connection{Direction: inboundDirection})
	}
	j.add(connection{Direction: outboundDirection, Error: "refused", Peer: "last"})
	last := j.connections()
	if len(last) != remembered || last[remembered-1].Peer != "last" {
		t.Errorf("%d remembered, last is %+v", len(last), last[len(last)-1])
	}
	if got := j.totals(); got[inboundDirection].OK != remembered+2 || got[outboundDirection].Failed != 1 {
		t.Errorf("counts %+v", got)
	}
}

func TestPipePassesOnTheEndAndKeepsTheOtherWay(t *testing.T) {
	clientEnd, proxyClient := tcpPair(t)
	proxyServer, serverEnd := tcpPair(t)
	go pipe(proxyServer, proxyClient)
	go pipe(proxyClient, proxyServer)
	if _, err := io.WriteString(clientEnd, "question"); err != nil {
		t.Fatal(err)
	}
	if err := clientEnd.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(serverEnd); string(got) != "question" || err != nil {
		t.Fatalf("the server got %q, %v", got, err)
	}
	if _, err := io.WriteString(serverEnd, "answer"); err != nil {
		t.Fatal(err)
	}
	if err := serverEnd.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(clientEnd); string(got) != "answer" || err != nil {
		t.Errorf("the client got %q, %v", got, err)
	}
}

func tcpPair(t *testing.T) (dialled, accepted *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if dialled, err = net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr)); err != nil {
		t.Fatal(err)
	}
	if accepted, err = l.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = dialled.Close(), accepted.Close() })
	return dialled, accepted
}
