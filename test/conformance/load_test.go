package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/kernel"
	"istio-pod-network-controller/iptables/xtables"
	"istio-pod-network-controller/test/kerneltest"
)

// changes is how often the rules are changed under load.
const changes = 100

// answerLimit is the longest time that an answer may take.
const answerLimit = 20 * time.Second

// stream is one direction of traffic and who must answer it.
type stream struct {
	from   string
	owner  kerneltest.Owner
	dst    string
	banner string
}

func streams() []stream {
	app := kerneltest.App
	return []stream{
		{"world", app, "10.244.1.5:8080", "PROXY:15006"},
		{"world", app, "[fd00:10:244:1::5]:8080", "PROXY:15006"},
		{"pod", app, "93.184.216.34:80", "PROXY:15001"},
		{"pod", app, "[fd00:99::34]:80", "PROXY:15001"},
	}
}

// variants are the rules that are applied in turn: an edit, another mode, DNS capture, long lists. Each stream has the same result with all
// of them.
func variants() []iptables.Spec {
	return []iptables.Spec{
		iptables.DefaultSpec(),
		with(func(s *iptables.Spec) { s.ExcludeOutboundPorts = []uint16{3306, 5432} }),
		with(tproxy),
		with(func(s *iptables.Spec) { s.DNS = iptables.DNSAll }),
		with(func(s *iptables.Spec) { s.ExcludeCIDRs = manyCIDRs()[:100] }),
		with(func(s *iptables.Spec) { tproxy(s); s.ExcludeInboundPorts = []uint16{9090}; s.DropInvalid = true }),
		with(func(s *iptables.Spec) {
			s.IncludeCIDRs = iptables.CIDRs{List: prefixes("0.0.0.0/1", "128.0.0.0/1", "::/0")} // iptables takes /0 for no condition
		}),
	}
}

// Nothing bypasses the proxy, is refused or hangs while rules are applied again, edited and switched; what is open lives on.
func TestApply_rulesChange_leaksNothing(t *testing.T) {
	for _, b := range backends(t) {
		t.Run(b.Name(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "ds")
			echoListeners(t, w)
			mustApply(t, b, w, configuration{spec: iptables.DefaultSpec()})
			held := w.hold(t)
			var made, wrong atomic.Int64
			stop := w.load(t, streams(), 2, &made, &wrong)
			changed := w.changeUnderLoad(t, b, held)
			stop()
			if made.Load() < 1000 || changed < changes-2 {
				t.Errorf("%d connections and %d changes prove too little", made.Load(), changed)
			}
			t.Logf("%d connections during %d changes: %d bypassed the proxy or failed; %d held connections lived on",
				made.Load(), changed, wrong.Load(), len(held))
		})
	}
}

// Nothing bypasses the proxy, and what is open lives on, while a node's backend changes to and fro in the mode that has most to lose: packets
// pass the rules of both backends for a moment.
func TestApply_backendChanges_leaksNothing(t *testing.T) {
	t.Parallel()
	kerneltest.ProgramPath(t, "iptables-legacy-restore")
	choice, err := kernel.NewChoice(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	nft, xnft, legacy := choice.Nftables(t.Context()), choice.Iptables(t.Context(), xtables.NFT), choice.Iptables(t.Context(), xtables.Legacy)
	w := newWorld(t, "ds")
	echoListeners(t, w)
	place, rules := podnet.Place{Path: w.pod().Path()}, configuration{spec: with(tproxy)}.rules(t)
	apply := func(b kernel.Backend) {
		if _, err := b.Apply(t.Context(), place, rules); err != nil {
			t.Fatal(err)
		}
	}
	apply(nft)
	held := w.hold(t)
	var made, wrong atomic.Int64
	stop := w.load(t, streams(), 1, &made, &wrong)
	for i := range 10 {
		for _, b := range []kernel.Backend{xnft, nft, legacy, nft, legacy, xnft} {
			apply(b)
			for _, h := range held {
				h.ping(t, i)
			}
		}
	}
	if stop(); made.Load() < 500 {
		t.Errorf("%d connections prove too little", made.Load())
	}
	t.Logf("%d connections during 60 changes of backend: %d went the wrong way or failed", made.Load(), wrong.Load())
}

// load starts loads for each stream, which count connections and those that went wrong until stop.
func (w world) load(t *testing.T, all []stream, each int, made, wrong *atomic.Int64) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, s := range all {
		for range each {
			wg.Go(func() { s.load(ctx, t, w.spaces[s.from], made, wrong) })
		}
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// changeUnderLoad changes the rules again and again, checks the held connections each time, and returns how many changes were made.
func (w world) changeUnderLoad(t *testing.T, b backend, held []held) (changed int) {
	t.Helper()
	all := variants()
	for i := range changes {
		out, err := b.Apply(t.Context(), w.pod().Path(), configuration{spec: all[i%len(all)]}.rules(t))
		if err != nil {
			t.Errorf("change %d: %v", i, err)
		}
		if out.Changed() {
			changed++
		}
		for _, h := range held {
			h.ping(t, i)
		}
	}
	return changed
}

// echoListeners stand for the proxy, the application and the world: a banner first, then whatever is sent comes back.
func echoListeners(t *testing.T, w world) {
	t.Helper()
	for port, who := range map[int]string{15001: "PROXY", 15006: "PROXY", 8080: "APP"} {
		go kerneltest.Echo(kerneltest.ListenTCP(t, w.pod(), kerneltest.Owner{UID: 0, GID: 1337}, true, fmt.Sprintf("[::]:%d", port)), fmt.Sprintf("%s:%d", who, port))
	}
	go kerneltest.Echo(kerneltest.ListenTCP(t, w.spaces["world"], kerneltest.App, false, "[::]:7000"), "WORLD:7000")
}

// open connects and reads the banner.
func (s stream) open(ctx context.Context) (net.Conn, *bufio.Reader, error) {
	d := net.Dialer{Timeout: 3 * time.Second}
	c, err := d.DialContext(ctx, "tcp", s.dst)
	if err != nil {
		return nil, nil, err
	}
	if err := c.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	if err == nil && strings.TrimSpace(line) != s.banner {
		err = fmt.Errorf("answered by %s, want %s", strings.TrimSpace(line), s.banner)
	}
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	return c, r, nil
}

// load connects again and again, from a thread that stays in the namespace. The thread has the lowest priority: loads that never pause would
// leave programs that change rules a tenth of a single processor.
func (s stream) load(ctx context.Context, t *testing.T, ns *netns.NS, made, wrong *atomic.Int64) {
	t.Helper()
	err := kerneltest.As(ns, s.owner, func() error {
		if err := unix.Setpriority(unix.PRIO_PROCESS, 0, 19); err != nil { // of the calling thread
			return err
		}
		for ctx.Err() == nil {
			c, _, err := s.open(ctx)
			switch {
			case err == nil:
				_ = c.Close()
			case ctx.Err() == nil:
				wrong.Add(1)
				t.Errorf("%s: %v", s.dst, err)
			}
			made.Add(1)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// held is a connection that was open before the rules changed.
type held struct {
	stream stream
	conn   net.Conn
	reader *bufio.Reader
}

func (w world) hold(t *testing.T) (out []held) {
	t.Helper()
	for _, s := range streams() {
		err := kerneltest.As(w.spaces[s.from], s.owner, func() error {
			c, r, err := s.open(t.Context())
			out = append(out, held{s, c, r})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, h := range out {
			_ = h.conn.Close()
		}
	})
	return out
}

func (h held) ping(t *testing.T, change int) {
	t.Helper()
	if err := h.conn.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(h.conn, change); err != nil {
		t.Fatalf("change %d: %s: %v", change, h.stream.dst, err)
	}
	if line, err := h.reader.ReadString('\n'); err != nil || strings.TrimSpace(line) != fmt.Sprint(change) {
		t.Fatalf("change %d: %s: %q came back, error %v", change, h.stream.dst, line, err)
	}
}
