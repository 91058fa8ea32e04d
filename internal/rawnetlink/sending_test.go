package rawnetlink

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

// A buffer that is used again must not send what was in it before.
func TestABufferSendsOneCallsRequests(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(ends[1]) }()
	c := &Conn{fd: ends[0]}
	defer c.Close()
	for i := range 20 { // the pool drops some under the race detector
		requests := []Request{{Kind: 1, Silent: true}, {Kind: 2, Attributes: [][]byte{bytes.Repeat([]byte{byte(i)}, 4*i)}}}
		var want []byte
		for n, r := range requests {
			want = r.append(want, c.sequence+uint32(n))
		}
		answered, err := c.sendAll(requests)
		if err != nil || answered != 1 {
			t.Fatalf("%d are answered: %v", answered, err)
		}
		got := make([]byte, 4096)
		n, err := unix.Read(ends[1], got)
		if err != nil || !bytes.Equal(got[:n], want) {
			t.Fatalf("call %d: sent %x, want %x: %v", i, got[:n], want, err)
		}
	}
}

func TestALongBufferIsNotKept(t *testing.T) {
	c := &Conn{fd: -1}
	for range 20 {
		if _, err := c.sendAll([]Request{{Attributes: [][]byte{make([]byte, longestKept)}}}); err == nil {
			t.Fatal("sent to nobody")
		}
		if kept, ok := sending.Get().(*[]byte); !ok || cap(*kept) > longestKept {
			t.Fatalf("%d bytes are kept", cap(*kept))
		}
	}
}
