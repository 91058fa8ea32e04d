package routing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
	up     bool           // lo is up
	addrs  []netip.Prefix // addresses that may be ours, and ::1
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
	asked := append(slices.Clone(iptables.LoopbackAddrs()), netip.PrefixFrom(netip.IPv6Loopback(), 128))
	link := rawnetlink.Request{
		Kind: unix.RTM_GETLINK, Header: linkHeader(0), Attributes: [][]byte{rawnetlink.Number(unix.IFLA_EXT_MASK, skipStats)},
	}
	answers, err := n.conn.Ask(n.end, append([]rawnetlink.Request{link}, addressRequests(asked)...)...)
	if err != nil {
		return err
	}
	if answers[0].Err != nil {
		return fmt.Errorf("find lo: %w", answers[0].Err)
	}
	n.up = len(answers[0].Body) >= unix.SizeofIfInfomsg && binary.NativeEndian.Uint32(answers[0].Body[8:])&unix.IFF_UP != 0
	n.addrs = nil
	for i, a := range answers[1:] {
		if isOnLo(a) {
			n.addrs = append(n.addrs, asked[i])
		}
	}
	return nil
}

// hasAddresses reports whether lo has all addresses of want. It is cheaper than readAddresses, since the kernel's answer about a link is
// long. Where lo goes down, it loses its addresses.
func (n *namespace) hasAddresses(want []netip.Prefix) (bool, error) {
	answers, err := n.conn.Ask(n.end, addressRequests(want)...)
	return err == nil && !slices.ContainsFunc(answers, func(a rawnetlink.Answer) bool { return !isOnLo(a) }), err
}

// addressRequests ask for one address each.
func addressRequests(asked []netip.Prefix) (requests []rawnetlink.Request) {
	for _, p := range asked {
		requests = append(requests, rawnetlink.Request{
			Kind: unix.RTM_GETADDR, Header: addrHeader(0, p.Addr(), 0), Attributes: [][]byte{rawnetlink.Bytes(unix.IFA_ADDRESS, p.Addr().AsSlice())},
		})
	}
	return requests
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

// hasIPv6 reports whether IPv6 is on for lo: then the kernel has put ::1 there. While lo is down this is unknown, and counts as on.
func (n *namespace) hasIPv6() bool {
	return !n.up || slices.Contains(n.addrs, netip.PrefixFrom(netip.IPv6Loopback(), 128))
}

// addressesInPlace returns the addresses of want that lo has, or cannot have: without IPv6, and while it is down. The CNI plugin loopback sets
// it down when a sandbox ends, and nothing is to be repaired then.
func (n *namespace) addressesInPlace(want []netip.Prefix) (found []netip.Prefix) {
	for _, p := range want {
		if slices.Contains(n.addrs, p) || !n.up || !n.hasIPv6() {
			found = append(found, p)
		}
	}
	return found
}

// addLoopback adds the addresses that lo lacks. Without IPv6 on lo it adds none: nothing could use them.
func (n *namespace) addLoopback(want []netip.Prefix) error {
	inPlace := n.addressesInPlace(want)
	for _, p := range want {
		if slices.Contains(inPlace, p) {
			continue
		}
		// NODAD: usable at once. No other host can have an address of lo.
		err := n.change(addrRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, p, unix.IFA_F_NODAD))
		if err != nil && !errors.Is(err, unix.EEXIST) { // added meanwhile by another program
			return fmt.Errorf("add address %s to lo: %w", p, err)
		}
	}
	return nil
}

// removeLoopback removes addresses from lo, and reports whether there was any. An absent address is success.
func (n *namespace) removeLoopback(addrs []netip.Prefix) (removed bool, err error) {
	for _, p := range addrs {
		switch err := n.change(addrRequest(unix.RTM_DELADDR, 0, p, 0)); {
		case err == nil:
			removed = true
		case !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.EOPNOTSUPP):
			return removed, fmt.Errorf("remove address %s from lo: %w", p, err)
		}
	}
	return removed, nil
}

func addrRequest(kind, flags uint16, p netip.Prefix, addrFlags byte) rawnetlink.Request {
	return rawnetlink.Request{
		Kind: kind, Flags: flags, Header: addrHeader(byte(p.Bits()), p.Addr(), addrFlags),
		Attributes: [][]byte{rawnetlink.Bytes(unix.IFA_LOCAL, p.Addr().AsSlice()), rawnetlink.Bytes(unix.IFA_ADDRESS, p.Addr().AsSlice())},
	}
}

// addrHeader is a struct ifaddrmsg.
func addrHeader(bits byte, a netip.Addr, flags byte) []byte {
	family := byte(unix.AF_INET6)
	if a.Is4() {
		family = unix.AF_INET
	}
	return binary.NativeEndian.AppendUint32([]byte{family, bits, flags, 0}, loIndex)
}

// linkHeader is a struct ifinfomsg for lo, with flags to set.
func linkHeader(flags uint32) []byte {
	h := binary.NativeEndian.AppendUint32([]byte{unix.AF_UNSPEC, 0, 0, 0}, loIndex)
	return binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(h, flags), flags)
}
