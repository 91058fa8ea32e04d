package kernel

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
)

// Whatever the kernel says of a socket, one that is reachable from outside is not taken for one of loopback.
func FuzzSocket(f *testing.F) {
	listener := make([]byte, diagMessageSize)
	listener[0] = unix.AF_INET
	binary.BigEndian.PutUint16(listener[diagPort:], 8080)
	f.Add(listener)
	six := append(append([]byte{}, listener...), rawnetlink.Bytes(diagV6Only, []byte{1})...)
	six[0] = unix.AF_INET6
	f.Add(six)
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) < diagMessageSize {
			return
		}
		s := socketOf(body)
		if !s.Address.IsValid() || s.Loopback != s.Address.IsLoopback() || s.Loopback && s.Address.IsUnspecified() {
			t.Errorf("%+v", s)
		}
	})
}
