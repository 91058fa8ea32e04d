package parking

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/iptables/nftables"
	"istio-pod-network-controller/test/kerneltest"
)

const (
	outboundPort = 15001
	inboundPort  = 15006
)

func specOf(mode iptables.Mode) iptables.Spec {
	spec := iptables.DefaultSpec()
	spec.Mode = mode
	return spec
}

// site is a pod with rules that hold, the world around it, and a Lot.
type site struct {
	pod, world *netns.NS
	lot        *Lot
	mode       iptables.Mode
}

func newSite(t *testing.T, mode iptables.Mode) site {
	t.Helper()
	in, err := kernel.NewNamespaces()
	if err != nil {
		t.Fatal(err)
	}
	s := site{lot: New(in), mode: mode}
	s.pod, s.world = kerneltest.NewPod(t)
	if identity, err := s.pod.Identity(); err == nil && identity.Cookie == 0 {
		kerneltest.SkipOrFail(t, "the kernel moves no connections from a listener that closes: it is older than Linux 5.14")
	}
	rules, err := iptables.HoldingRules(specOf(mode), iptables.HoldBoth)
	if err == nil {
		_, err = kernel.New(in, nftables.New()).Apply(t.Context(), s.sandbox().Place(), rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.lot.Leave("sandbox") })
	return s
}

func (s site) sandbox() podnet.Sandbox { return podnet.Sandbox{ID: "sandbox", NetNS: s.pod.Path()} }

// listen opens the proxy's listeners, and returns what closes them.
func (s site) listen(t *testing.T, hosts ...string) (closeAll func()) {
	t.Helper()
	var all []net.Listener
	var accepting sync.WaitGroup
	for _, port := range []int{outboundPort, inboundPort} {
		for _, host := range hosts {
			config := net.ListenConfig{Control: func(network, addr string, raw syscall.RawConn) error {
				err := kerneltest.Option(unix.SOL_SOCKET, unix.SO_REUSEPORT)(network, addr, raw)
				if s.mode == iptables.ModeTProxy {
					err = errors.Join(err, kerneltest.Option(unix.SOL_IP, unix.IP_TRANSPARENT)(network, addr, raw))
				}
				return err
			}}
			var l net.Listener
			if err := kerneltest.As(s.pod, kerneltest.Proxy, func() (err error) {
				l, err = config.Listen(t.Context(), network(hosts, host), net.JoinHostPort(host, fmt.Sprint(port)))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			accepting.Go(func() { kerneltest.Answer(l, fmt.Sprintf("proxy:%d", port)) })
			all = append(all, l)
		}
	}
	closeAll = sync.OnceFunc(func() {
		for _, l := range all {
			_ = l.Close()
		}
		accepting.Wait() // an Accept keeps its listener open
	})
	t.Cleanup(closeAll)
	return closeAll
}

// network has a listener take connections of IPv6 alone if there is another one for IPv4.
func network(hosts []string, host string) string {
	if host == "::" && len(hosts) > 1 {
		return "tcp6"
	}
	return "tcp"
}

// learn has the Lot see a proxy that listens at some addresses, and has ended since.
func (s site) learn(t *testing.T, hosts ...string) {
	t.Helper()
	end := s.listen(t, hosts...)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := s.lot.Learn(ctx, s.sandbox(), "some", specOf(s.mode)); err != nil {
		t.Fatal(err)
	}
	end()
}

func (s site) park(t *testing.T, until time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := s.lot.Park(ctx, s.sandbox(), "some", specOf(s.mode), time.Now().Add(until)); err != nil {
		t.Fatal(err)
	}
}

// result is what became of a connection.
type result struct {
	name, answer string
	at           time.Time
	err          error
}

// dial opens connections in both directions and families, n of each.
func (s site) dial(t *testing.T, n int) <-chan result {
	t.Helper()
	all := map[string]*netns.NS{
		net.JoinHostPort(kerneltest.Outside4, "80"): s.pod, net.JoinHostPort(kerneltest.Outside6, "80"): s.pod,
		net.JoinHostPort(kerneltest.Pod4, "8080"): s.world, net.JoinHostPort(kerneltest.Pod6, "8080"): s.world,
	}
	out := make(chan result, n*len(all))
	var done sync.WaitGroup
	for dst, from := range all {
		for range n {
			done.Go(func() {
				r := result{name: dst}
				r.err = kerneltest.As(from, kerneltest.App, func() error {
					c, err := (&net.Dialer{Timeout: 30 * time.Second}).DialContext(t.Context(), "tcp", dst)
					if err != nil {
						return err
					}
					defer c.Close()
					buf := make([]byte, 64)
					if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
						return err
					}
					n, err := c.Read(buf)
					r.answer, r.at = string(buf[:n]), time.Now()
					return err
				})
				out <- r
			})
		}
	}
	go func() { done.Wait(); close(out) }()
	return out
}

// awaitParked waits until so many connections wait in the proxy's stead.
func (s site) awaitParked(t *testing.T, want uint32) {
	t.Helper()
	var n uint32
	var err error
	defer func() {
		if n != want {
			t.Logf("%d of %d connections wait, error %v", n, want, err)
		}
	}()
	kerneltest.Eventually(t, "connections are parked", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		n, err = kernel.Visit(ctx, s.lot.namespaces, s.sandbox().Place(), func(ctx context.Context, ns *netns.NS) (uint32, error) {
			out, err := kernel.Waiting(ctx, ns, outboundPort)
			if err != nil {
				return 0, err
			}
			in, err := kernel.Waiting(ctx, ns, inboundPort)
			return out + in, err
		})
		return err == nil && n == want
	})
}

// awaitCounts waits until the Lot has counted what was parked.
func (s site) awaitCounts(t *testing.T, want Counts) {
	t.Helper()
	kerneltest.Eventually(t, "all are counted", func() bool { return s.lot.Counts() == want })
}

// awaitHeld waits until so many packets were held.
func (s site) awaitHeld(t *testing.T, want uint64) {
	t.Helper()
	kerneltest.Eventually(t, "packets are held", func() bool { return s.held(t) >= want })
}

// held returns how many packets were held.
func (s site) held(t *testing.T) uint64 {
	t.Helper()
	listing, _, err := kerneltest.NewByPath(t, nftables.New(), nil).List(t.Context(), s.pod.Path())
	if err != nil {
		t.Fatal(err)
	}
	n, _ := iptables.HeldPackets(listing.Lines)
	return n
}
