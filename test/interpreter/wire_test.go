package interpreter

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// hops is the hop limit of the test's packets. The kernel's own answers have 64, by which the observer drops them.
const hops = 77

// bytes returns a packet for the wire. TCP's acknowledgment, or UDP's payload, is the ID; TCP's window is the mark of the connection, and its
// urgent pointer is the packet's, for the observer.
func (p Packet) bytes(id uint32) []byte {
	body := make([]byte, 20)
	if p.Protocol == iptables.UDP {
		body = body[:12]
		binary.BigEndian.PutUint16(body[4:], uint16(len(body)))
	} else {
		binary.BigEndian.PutUint32(body[4:], 1000)
		body[12], body[13] = 5<<4, byte(p.Flags)
		binary.BigEndian.PutUint16(body[14:], uint16(p.ConnMark))
		if p.State == iptables.Untracked {
			binary.BigEndian.PutUint16(body[14:], iptables.Untracked) // the observer's order
		}
		binary.BigEndian.PutUint16(body[18:], uint16(p.Mark))
	}
	binary.BigEndian.PutUint16(body, p.Src.Port())
	binary.BigEndian.PutUint16(body[2:], p.Dst.Port())
	binary.BigEndian.PutUint32(body[8:], id)
	src, dst := p.Src.Addr().AsSlice(), p.Dst.Addr().AsSlice()
	sum := checksum(uint32(len(body))+p.Protocol, src, dst, body)
	at := 16
	if p.Protocol == iptables.UDP {
		at = 6
	}
	binary.BigEndian.PutUint16(body[at:], sum)
	if isIPv6(p) {
		head := []byte{6 << 4, 0, 0, 0, 0, byte(len(body)), byte(p.Protocol), hops}
		return append(append(append(head, src...), dst...), body...)
	}
	head := append([]byte{4<<4 | 5, 0, 0, byte(20 + len(body)), 1, 1, 0, 0, hops, byte(p.Protocol), 0, 0}, append(src, dst...)...)
	binary.BigEndian.PutUint16(head[10:], checksum(0, head))
	return append(head, body...)
}

// checksum is that of IP, TCP and UDP; all parts have an even length.
func checksum(sum uint32, parts ...[]byte) uint16 {
	for _, part := range parts {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// wire sends packets from a pod, and to it.
type wire struct {
	pod     *netns.NS
	sockets map[sender]int // raw sockets in the pod
	toPod   int            // a packet socket in the world
	ends    map[string]end
}

// sender is what a raw socket in the pod has.
type sender struct {
	owner Owner
	ipv6  bool
}

// end is the world's end of a veth pair, and the address of the pod's end.
type end struct {
	index int
	mac   []byte
}

// send sends a packet, and reports whether the kernel has taken it. A packet that the rules drop is taken.
func (w *wire) send(t *testing.T, p Packet, id uint32) (taken bool) {
	t.Helper()
	var err error
	if p.Out.Name != "" {
		err = w.fromPod(t, p, id)
	} else {
		err = w.fromWorld(p, id)
	}
	return err == nil || errors.Is(err, unix.EPERM)
}

func (w *wire) fromWorld(p Packet, id uint32) error {
	e := w.ends[p.In.Name]
	protocol := uint16(unix.ETH_P_IP)
	if isIPv6(p) {
		protocol = unix.ETH_P_IPV6
	}
	to := &unix.SockaddrLinklayer{Protocol: kerneltest.NetworkOrder(protocol), Ifindex: e.index, Halen: 6}
	copy(to.Addr[:], e.mac)
	return unix.Sendto(w.toPod, p.bytes(id), 0, to)
}

func (w *wire) fromPod(t *testing.T, p Packet, id uint32) error {
	t.Helper()
	fd := w.socket(t, sender{*p.Owner, isIPv6(p)})
	device := ""
	if isBound(p) {
		device = p.Out.Name
	}
	if err := errors.Join(unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, device),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(p.Mark))); err != nil {
		t.Fatal(err)
	}
	if isIPv6(p) {
		return unix.Sendto(fd, p.bytes(id), 0, &unix.SockaddrInet6{Addr: p.Dst.Addr().As16()})
	}
	return unix.Sendto(fd, p.bytes(id), 0, &unix.SockaddrInet4{Addr: p.Dst.Addr().As4()})
}

// isBound reports whether a packet that the pod sends takes another way than the routes say.
func isBound(p Packet) bool { return p.Out != Loopback() && p.Out.Name != "eth0" }

// socket returns the raw socket of an owner.
func (w *wire) socket(t *testing.T, s sender) (fd int) {
	t.Helper()
	if fd, known := w.sockets[s]; known {
		return fd
	}
	family := unix.AF_INET
	if s.ipv6 {
		family = unix.AF_INET6
	}
	err := kerneltest.As(w.pod, kerneltest.Owner{UID: int(s.owner.UID), GID: int(s.owner.GID)}, func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	w.sockets[s] = fd
	return fd
}

// reversed returns the packet of the other direction, of another owner.
func (p Packet) reversed() Packet {
	p.Src, p.Dst, p.In, p.Out, p.Owner = p.Dst, p.Src, p.Out, p.In, &Owner{}
	return p
}

func (p Packet) flagged(flags uint32) Packet {
	p.Flags = flags
	return p
}

// ends4 are the addresses of the pod's interfaces to the world. The rules redirect what comes in to the interface's own address.
func podEnds() map[string][]netip.Prefix {
	return map[string][]netip.Prefix{
		"eth0": {netip.MustParsePrefix(pod4 + "/24"), netip.MustParsePrefix(pod6 + "/64")},
		"net1": {netip.MustParsePrefix("192.0.2.5/24"), netip.MustParsePrefix("2001:db8:1::5/64")},
		"net2": {netip.MustParsePrefix("198.51.100.5/24"), netip.MustParsePrefix("2001:db8:2::5/64")},
	}
}

// newWire joins a new pod by three interfaces to a world that answers nothing.
func newWire(t *testing.T) *wire {
	t.Helper()
	pod, world := kerneltest.New(t), kerneltest.New(t)
	w := &wire{pod: pod, sockets: map[sender]int{}, ends: map[string]end{}}
	metric := 100
	for _, name := range []string{"all", "default"} {
		kerneltest.Sysctl(t, pod, "net/ipv4/conf/"+name+"/rp_filter", "0")
	}
	script := "ip addr add ::6/128 dev lo nodad\n"
	for name, addresses := range podEnds() {
		kerneltest.JoinByVeth(t, world, name, pod, name)
		script += "ip link set " + name + " arp off\n"
		for _, a := range addresses {
			kerneltest.AddAddresses(t, pod, name, a.String())
		}
		script += routes(name, metric)
		metric++
	}
	kerneltest.Shell(t, pod, script, "")
	if err := world.Inside(func() (err error) {
		w.toPod, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(w.toPod) })
	for name := range podEnds() {
		w.ends[name] = end{index: linkOf(t, world, name).Attrs().Index, mac: linkOf(t, pod, name).Attrs().HardwareAddr}
	}
	return w
}
