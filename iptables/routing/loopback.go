package routing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/rawnetlink"
	"istio-pod-network-controller/iptables"
)

// loIndex is the index of lo, whatever name it has.
const loIndex = iptables.LoopbackIndex

// skipStats is RTEXT_FILTER_SKIP_STATS: an interface's statistics are not wanted.
const skipStats = 1 << 3

// namespace is the calling thread's network namespace, and what was found there that may be ours.
type namespace struct {
	conn   *rawnetlink.Conn
	end    time.Time
	up     bool // lo is up
	ours   bool // lo has iptables.LoopbackAddr
	ipv6   bool // lo has ::1
	policy []policyState
}

// read reads what may be ours.
func (n *namespace) read() error {
	if err := n.readAddresses(); err != nil {
		return err
	}
	return n.readPolicy()
}

// readAddresses asks for each address separately: a pod may have added any number.
func (n *namespace) readAddresses() error {
	link := rawnetlink.Request{
		Kind: unix.RTM_GETLINK, Header: linkHeader(0), Attributes: [][]byte{rawnetlink.Number(unix.IFLA_EXT_MASK, skipStats)},
	}
	answers, err := n.conn.Ask(n.end, link, addressRequest(iptables.LoopbackAddr().Addr()), addressRequest(netip.IPv6Loopback()))
	if err != nil {
		return err
	}
	if answers[0].Err != nil {
		return fmt.Errorf("find lo: %w", answers[0].Err)
	}
	n.up = len(answers[0].Body) >= unix.SizeofIfInfomsg && binary.NativeEndian.Uint32(answers[0].Body[8:])&unix.IFF_UP != 0
	n.ours, n.ipv6 = isOnLo(answers[1]), isOnLo(answers[2])
	return nil
}

// hasAddress reports whether lo has our address. It is cheaper than readAddresses, since the kernel's answer about a link is long. Where lo goes down, it
// loses its addresses.
func (n *namespace) hasAddress() (bool, error) {
	answers, err := n.conn.Ask(n.end, addressRequest(iptables.LoopbackAddr().Addr()))
	return err == nil && isOnLo(answers[0]), err
}

// addressRequest asks for one address.
func addressRequest(a netip.Addr) rawnetlink.Request {
	return rawnetlink.Request{Kind: unix.RTM_GETADDR, Header: addrHeader(0, 0), Attributes: [][]byte{rawnetlink.Bytes(unix.IFA_ADDRESS, a.AsSlice())}}
}

// isOnLo reports whether the kernel answers with an address of lo. Without an answer, whatever the error, it has no such address, or no
// IPv6. The address with another prefix length is as good, and the kernel would not add ours beside it.
func isOnLo(a rawnetlink.Answer) bool {
	return len(a.Body) >= unix.SizeofIfAddrmsg && binary.NativeEndian.Uint32(a.Body[4:]) == loIndex
}

// setLoUp sets lo up, and reads again, since that adds addresses.
func (n *namespace) setLoUp() error {
	if n.up {
		return nil
	}
	err := n.change(rawnetlink.Request{Kind: unix.RTM_NEWLINK, Header: linkHeader(unix.IFF_UP)})
	if err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return n.read()
}

// change makes one request and returns the kernel's error.
func (n *namespace) change(r rawnetlink.Request) error {
	r.Flags |= unix.NLM_F_ACK
	answers, err := n.conn.Ask(n.end, r)
	if err != nil {
		return err
	}
	return answers[0].Err
}

// inPlace reports whether lo has our address, or cannot have it: without IPv6, and while it is down. The CNI plugin loopback sets it down when a
// sandbox ends, and nothing is to be repaired then.
func (n *namespace) inPlace() bool { return n.ours || !n.up || !n.ipv6 }

// addLoopback adds our address if lo lacks it. Without IPv6 on lo it adds none: nothing could use it.
func (n *namespace) addLoopback() error {
	if n.inPlace() {
		return nil
	}
	// NODAD: usable at once. No other host can have an address of lo.
	err := n.change(ourAddress(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, unix.IFA_F_NODAD))
	if err != nil && !errors.Is(err, unix.EEXIST) { // added meanwhile by another program
		return fmt.Errorf("add address %s to lo: %w", iptables.LoopbackAddr(), err)
	}
	return nil
}

// removeLoopback removes our address from lo, and reports whether it was there. An absent address is success.
func (n *namespace) removeLoopback() (removed bool, err error) {
	err = n.change(ourAddress(unix.RTM_DELADDR, 0, 0))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EOPNOTSUPP):
		return false, nil
	}
	return false, fmt.Errorf("remove address %s from lo: %w", iptables.LoopbackAddr(), err)
}

// ourAddress is a request to change our address.
func ourAddress(kind, flags uint16, addrFlags byte) rawnetlink.Request {
	p := iptables.LoopbackAddr()
	return rawnetlink.Request{
		Kind: kind, Flags: flags, Header: addrHeader(byte(p.Bits()), addrFlags),
		Attributes: [][]byte{rawnetlink.Bytes(unix.IFA_LOCAL, p.Addr().AsSlice()), rawnetlink.Bytes(unix.IFA_ADDRESS, p.Addr().AsSlice())},
	}
}

// addrHeader is a struct ifaddrmsg for an address of IPv6 on lo.
func addrHeader(bits, flags byte) []byte {
	return binary.NativeEndian.AppendUint32([]byte{unix.AF_INET6, bits, flags, 0}, loIndex)
}

// linkHeader is a struct ifinfomsg for lo, with flags to set.
func linkHeader(flags uint32) []byte {
	h := binary.NativeEndian.AppendUint32([]byte{unix.AF_UNSPEC, 0, 0, 0}, loIndex)
	return binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(h, flags), flags)
}
