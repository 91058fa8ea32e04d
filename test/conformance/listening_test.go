package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// listeningPod is a pod whose rules capture the ports on which somebody listens.
type listeningPod struct{ world }

func newListeningPod(t *testing.T, w way, change func(*iptables.Spec)) listeningPod {
	t.Helper()
	p := listeningPod{newWorld(t, "ds")}
	go kerneltest.Answer(kerneltest.ListenTCP(t, p.pod(), kerneltest.Proxy, true, "[::]:15006"), "PROXY")
	mustApply(t, w.backend, p.world, configuration{spec: with(func(s *iptables.Spec) {
		s.Mode, s.IncludeInboundPorts.Listening = w.mode, true
		change(s)
	})})
	return p
}

// dial returns who answers a client of the pod's port: "refused" is the kernel.
func (p listeningPod) dial(ctx context.Context, address string, port int) string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	got, err := kerneltest.Dial(ctx, p.spaces["world"], kerneltest.App, "", net.JoinHostPort(address, fmt.Sprint(port)))
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case err != nil:
		return err.Error()
	}
	return got.Banner
}

// way is a backend and an interception mode.
type way struct {
	backend backend
	mode    iptables.Mode
}

func ways(t *testing.T) map[string]way {
	t.Helper()
	out := map[string]way{}
	for _, b := range backends(t) {
		for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
			out[b.Name()+"/"+string(mode)] = way{b, mode}
		}
	}
	return out
}

func podAddresses() map[string]string {
	return map[string]string{"IPv4": "10.244.1.5", "IPv6": "fd00:10:244:1::5"}
}

func TestListening_portOpensAndCloses_isCapturedWhileOpen(t *testing.T) {
	for name, w := range ways(t) {
		t.Run(name, func(t *testing.T) {
			p := newListeningPod(t, w, func(*iptables.Spec) {})
			p.listen(t, kerneltest.App, "APP", "[::]:8080", "127.0.0.1:8081", "[::1]:8081", "10.244.1.5:8082", "[fd00:10:244:1::5]:8082")
			p.listen(t, kerneltest.Proxy, "DIRECT", "[::]:15021", "[::]:15008")
			for family, address := range podAddresses() {
				p.expect(t, family, address, map[int]string{8080: "PROXY", 8081: "refused", 8082: "PROXY", 7: "refused", 15021: "DIRECT", 15008: "DIRECT"})
				p.opensAndCloses(t, family, address)
			}
		})
	}
}

// listen answers at addresses of the pod, and returns the last listener.
func (p listeningPod) listen(t *testing.T, owner kerneltest.Owner, banner string, addresses ...string) (l net.Listener) {
	t.Helper()
	for _, address := range addresses {
		l = kerneltest.ListenTCP(t, p.pod(), owner, false, address)
		go kerneltest.Answer(l, banner)
	}
	return l
}

// expect fails unless each port is answered as it should be.
func (p listeningPod) expect(t *testing.T, when, address string, want map[int]string) {
	t.Helper()
	for port, want := range want {
		if got := p.dial(t.Context(), address, port); got != want {
			t.Errorf("%s, port %d: answered by %q, want %q", when, port, got, want)
		}
	}
}

func (p listeningPod) opensAndCloses(t *testing.T, family, address string) {
	t.Helper()
	p.expect(t, family+", before somebody listens", address, map[int]string{9090: "refused"})
	l := p.listen(t, kerneltest.App, "APP", "[::]:9090")
	p.expect(t, family+", the first connection", address, map[int]string{9090: "PROXY"})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	p.expect(t, family+", after nobody listens any more", address, map[int]string{9090: "refused"})
}

func TestListening_listOfPorts_isNarrowed(t *testing.T) {
	for name, w := range ways(t) {
		t.Run(name, func(t *testing.T) {
			p := newListeningPod(t, w, func(s *iptables.Spec) {
				s.IncludeInboundPorts = iptables.Ports{List: []uint16{8080, 8081}, Listening: true}
			})
			kerneltest.Listen(t, p.pod(), kerneltest.App, "APP", 8080, 9090)
			for family, address := range podAddresses() {
				p.expect(t, family, address, map[int]string{8080: "PROXY", 8081: "refused", 9090: "APP:9090"})
			}
		})
	}
}

// A client that dials all the time meets the proxy or nobody, however often the port opens and closes.
func TestListening_portThatOpens_letsNobodyPass(t *testing.T) {
	const rounds = 300
	for name, w := range ways(t) {
		t.Run(name, func(t *testing.T) {
			p := newListeningPod(t, w, func(*iptables.Spec) {})
			client := p.startDialling(t)
			for i := range rounds {
				l := kerneltest.ListenTCP(t, p.pod(), kerneltest.App, false, "10.244.1.5:9090")
				go kerneltest.Answer(l, "APP")
				if got := p.dial(t.Context(), "10.244.1.5", 9090); got != "PROXY" {
					t.Errorf("the first connection of a client that knows that the port is open: %q", got)
				}
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				if i%10 == 0 { // on a single core the client gets no turn between this and the next listener
					before := client.refusals()
					kerneltest.Eventually(t, "the client finds the port closed", func() bool { return client.refusals() > before })
				}
			}
			answers := client.stop()
			if answers["APP"] > 0 || answers["PROXY"] == 0 || answers["refused"] == 0 {
				t.Errorf("answers: %v", answers)
			}
			t.Log(answers)
		})
	}
}

// dialling is a client that dials port 9090 of a pod all the time.
type dialling struct {
	end     context.CancelFunc
	done    chan struct{}
	mu      sync.Mutex
	answers map[string]int
}

func (p listeningPod) startDialling(t *testing.T) *dialling {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d := &dialling{end: cancel, done: make(chan struct{}), answers: map[string]int{}}
	go func() {
		defer close(d.done)
		for ctx.Err() == nil {
			answer := p.dial(ctx, "10.244.1.5", 9090)
			d.mu.Lock()
			d.answers[answer]++
			d.mu.Unlock()
		}
	}()
	t.Cleanup(func() { d.stop() })
	return d
}

// refusals counts how often it has found the port closed.
func (d *dialling) refusals() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.answers["refused"]
}

// stop ends it, and returns what it has met.
func (d *dialling) stop() map[string]int {
	d.end()
	<-d.done
	return d.answers
}
