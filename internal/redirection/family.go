package redirection

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"
)

// validationPort and the addresses below equal iptables.Validation, as a test checks.
const validationPort = 15005

// family is an address family with its addresses as bytes.
type family struct {
	name                 string
	domain               int
	loopback, validation []byte
}

func families() []family {
	return []family{
		{name: "IPv4", domain: syscall.AF_INET, loopback: []byte{127, 0, 0, 1}, validation: []byte{127, 0, 0, 6}},
		{name: "IPv6", domain: syscall.AF_INET6, loopback: []byte{15: 1}, validation: []byte{15: 6}},
	}
}

func (f family) missing(why string) error { return missingError{f.name + ": " + why} }

func (f family) address(ip []byte, port int) syscall.Sockaddr {
	if f.domain == syscall.AF_INET {
		return &syscall.SockaddrInet4{Port: port, Addr: [4]byte(ip)}
	}
	return &syscall.SockaddrInet6{Port: port, Addr: [16]byte(ip)}
}

// bind makes a socket bound to an address of the pod. EADDRINUSE means that another process listens there; sockets that are only bound
// do not conflict. EADDRNOTAVAIL means that the pod does not have the address.
func (f family) bind(ip []byte, port int) (socket, error) {
	s, err := open(f.domain)
	if err != nil {
		return 0, &triedError{"open a socket", err}
	}
	if err := syscall.Bind(int(s), f.address(ip, port)); err != nil {
		s.close()
		return 0, &triedError{"bind port " + strconv.Itoa(port), err}
	}
	return s, nil
}

// take waits until the connection c arrives at l, and checks a token that is sent over it and its original destination.
func (f family) take(l, c socket) error {
	token, err := newToken()
	if err != nil {
		return err
	}
	if _, err := syscall.Write(int(c), token); err != nil {
		return f.missing(err.Error())
	}
	self, err := c.local()
	if err != nil {
		return err
	}
	for {
		arrived, from, err := l.accept()
		if errors.Is(err, syscall.EAGAIN) {
			return f.missing("connected, but not to the inbound port")
		}
		if err != nil {
			return err
		}
		if from == self {
			err := f.check(arrived, token)
			arrived.close()
			return err
		}
		arrived.close()
	}
}

func newToken() ([]byte, error) {
	random, err := os.Open("/dev/urandom")
	if err != nil {
		return nil, err
	}
	defer random.Close()
	token := make([]byte, 16)
	_, err = random.Read(token)
	return token, err
}

func (f family) check(arrived socket, token []byte) error {
	got, err := arrived.read(len(token))
	if err != nil || !bytes.Equal(got, token) {
		return f.missing("what was sent did not arrive")
	}
	ip, port, err := OriginalDst(int(arrived), f.domain)
	switch {
	case err != nil:
		return f.missing("the destination is lost: " + err.Error())
	case !bytes.Equal(ip, f.validation) || port != validationPort:
		return f.missing("the destination is not the one that was dialled")
	}
	return nil
}
