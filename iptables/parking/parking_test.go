package parking

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// Connections that are earlier than their proxy are open at once, and answered as soon as it listens.
func TestPark_connectionsBeforeTheProxy_areAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
		for name, hosts := range map[string][]string{"both families apart": {"0.0.0.0", "::"}, "one listener for both": {"::"}} {
			t.Run(fmt.Sprintf("%s/%s", mode, name), func(t *testing.T) {
				t.Parallel()
				wantParked(t, newSite(t, mode), hosts)
			})
		}
	}
}

func wantParked(t *testing.T, s site, hosts []string) {
	t.Helper()
	s.learn(t, hosts...)
	s.park(t, time.Minute) // on a busy machine the connections take a while to be made
	const each, all = 130, 4 * 130
	results := s.dial(t, each)
	s.awaitParked(t, all)
	began := time.Now()
	s.listen(t, hosts...)
	last := wantAnswered(t, results)
	t.Logf("the last of %d parked connections was answered %s after the proxy began to listen", all, last.Sub(began))
	if n := s.held(t); n > 0 {
		t.Errorf("%d packets were dropped, and sent again", n)
	}
	s.awaitCounts(t, Counts{HandedOver: all})
}

// wantAnswered returns when the last connection was answered.
func wantAnswered(t *testing.T, results <-chan result) (last time.Time) {
	t.Helper()
	for r := range results {
		if r.err != nil {
			t.Errorf("%s: %v", r.name, r.err)
		}
		if r.at.After(last) {
			last = r.at
		}
	}
	return last
}

// What waits in vain is reset at the deadline, and no listener is left.
func TestPark_proxyNeverComes_isResetAtTheDeadline(t *testing.T) {
	t.Parallel()
	s := newSite(t, iptables.ModeRedirect)
	s.learn(t, "0.0.0.0", "::")
	s.park(t, 700*time.Millisecond)
	began := time.Now()
	for r := range s.dial(t, 2) {
		if waited := time.Since(began); r.err == nil || waited < 600*time.Millisecond {
			t.Errorf("%s: answer %q, error %v after %s", r.name, r.answer, r.err, waited)
		}
	}
	s.awaitCounts(t, Counts{Reset: 8})
	s.wantFree(t)
}

// wantFree wants nobody to listen on the proxy's ports: who binds them needs not share them.
func (s site) wantFree(t *testing.T) {
	t.Helper()
	for _, port := range []int{outboundPort, inboundPort} {
		_ = kerneltest.ListenTCP(t, s.pod, kerneltest.App, false, fmt.Sprintf("[::]:%d", port)).Close()
	}
}

func TestLeave_parked_isReset(t *testing.T) {
	t.Parallel()
	s := newSite(t, iptables.ModeRedirect)
	s.learn(t, "0.0.0.0", "::")
	s.park(t, 20*time.Second)
	results := s.dial(t, 1)
	s.awaitParked(t, 4)
	s.lot.Leave("sandbox")
	for r := range results {
		if !errors.Is(r.err, syscall.ECONNRESET) {
			t.Errorf("%s: answer %q, error %v", r.name, r.answer, r.err)
		}
	}
	s.wantFree(t)
}

// The agent may learn that the proxy is ready before it has looked for its listener: what waits is handed over all the same, and counts so.
func TestLeave_proxyListens_isHandedOver(t *testing.T) {
	t.Parallel()
	s := newSite(t, iptables.ModeRedirect)
	s.learn(t, "0.0.0.0", "::")
	s.park(t, 20*time.Second)
	results := s.dial(t, 1)
	s.awaitParked(t, 4)
	s.listen(t, "0.0.0.0", "::")
	s.lot.Leave("sandbox")
	wantAnswered(t, results)
	s.awaitCounts(t, Counts{HandedOver: 4})
}

// Two agents of a node park for one pod: the connections of each go to the proxy, also if the first agent has left before.
func TestPark_twoAgents_connectionsGoToTheProxy(t *testing.T) {
	t.Parallel()
	for name, leaves := range map[string]bool{"both stay": false, "the first one leaves": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, iptables.ModeRedirect)
			other := site{pod: s.pod, world: s.world, mode: s.mode, lot: New(s.lot.namespaces)}
			s.learn(t, "0.0.0.0", "::")
			other.learn(t, "0.0.0.0", "::")
			s.park(t, 10*time.Second)
			other.park(t, 10*time.Second)
			results := s.dial(t, 10)
			s.awaitParked(t, 40)
			if leaves {
				s.lot.Leave("sandbox")
				s.awaitParked(t, 40)
			}
			s.listen(t, "0.0.0.0", "::")
			wantAnswered(t, results)
		})
	}
}

// Beside some listeners nobody else can listen, or nobody knows how: then the ports stay free, and connections wait by their clients' retransmissions.
func TestPark_nobodyCanListenBeside_portsStayFree(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*testing.T, site) (end func()){
		"a proxy that is not known": func(*testing.T, site) func() { return func() {} },
		"a proxy that does not share its ports": func(t *testing.T, s site) func() {
			l := kerneltest.ListenTCP(t, s.pod, kerneltest.Proxy, false, "0.0.0.0:15001")
			s.learn(t)
			return func() { _ = l.Close() }
		},
		"listeners of another user": func(t *testing.T, s site) func() {
			l := kerneltest.ListenTCP(t, s.pod, kerneltest.App, false, "0.0.0.0:15001")
			s.learn(t)
			return func() { _ = l.Close() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, iptables.ModeRedirect)
			end := prepare(t, s)
			s.park(t, 10*time.Second)
			end()
			s.wantFree(t)
			results := s.dial(t, 1)
			s.awaitHeld(t, 4)
			s.listen(t, "0.0.0.0", "::")
			wantAnswered(t, results)
		})
	}
}

// A proxy that listens, and is not ready yet, takes its connections itself.
func TestPark_proxyListens_nothingIsParked(t *testing.T) {
	t.Parallel()
	s := newSite(t, iptables.ModeRedirect)
	s.learn(t, "0.0.0.0", "::")
	s.listen(t, "0.0.0.0", "::")
	s.park(t, 10*time.Second)
	if n := len(s.spots()); n != 0 {
		t.Errorf("%d listeners beside the proxy's", n)
	}
}

// A process of the pod has one of the proxy's ports: it keeps it, and the others are parked.
func TestPark_portIsTaken_othersAreParked(t *testing.T) {
	t.Parallel()
	s := newSite(t, iptables.ModeRedirect)
	s.learn(t, "0.0.0.0", "::")
	kerneltest.Listen(t, s.pod, kerneltest.App, "application", outboundPort)
	s.park(t, 10*time.Second)
	if n := len(s.spots()); n != 2 {
		t.Errorf("%d listeners, want those of the inbound port", n)
	}
}

// Nobody looks for the proxy while no connection waits, and what looks for listeners does not see ours, however many may wait in them.
func TestPark_nothingWaits_nobodyLooks(t *testing.T) {
	t.Parallel()
	for _, most := range []string{"4096", "128"} {
		t.Run("somaxconn "+most, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, iptables.ModeRedirect)
			kerneltest.Sysctl(t, s.pod, "net/core/somaxconn", most)
			wantUnnoticed(t, s)
		})
	}
}

func wantUnnoticed(t *testing.T, s site) {
	t.Helper()
	s.learn(t, "0.0.0.0", "::")
	s.park(t, 10*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	unheard, err := s.lot.namespaces.Unheard(ctx, s.sandbox().Place(), []uint16{outboundPort, inboundPort})
	if err != nil || len(unheard) != 2 {
		t.Errorf("nobody listens on %v, error %v", unheard, err)
	}
	var looks atomic.Int64
	one := s.spots()[0]
	done := make(chan struct{})
	go func() {
		defer close(done)
		one.wait(t.Context(), time.Now().Add(500*time.Millisecond), func(context.Context) (bool, error) { looks.Add(1); return false, nil })
	}()
	<-done
	if looks.Load() != 0 {
		t.Errorf("%d looks", looks.Load())
	}
}

// A look that fails, as on a node that is busy, closes nothing: what waits goes to the proxy that a later look finds.
func TestPark_lookFails_isDoneAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t, iptables.ModeRedirect)
	s.learn(t, "0.0.0.0", "::")
	s.park(t, time.Minute)
	results := s.dial(t, 1)
	s.awaitParked(t, 4)
	looks, comes := 0, func() { s.listen(t, "0.0.0.0", "::") }
	came, waiting := s.spots()[0].wait(t.Context(), time.Now().Add(time.Minute), func(context.Context) (bool, error) {
		looks++
		if looks < 3 {
			return false, context.DeadlineExceeded
		}
		comes()
		return true, nil
	})
	if !came || waiting == 0 {
		t.Errorf("the proxy came: %v, %d connections were handed over, after %d looks", came, waiting, looks)
	}
	wantAnswered(t, results)
}

// spots returns the listeners that are parked.
func (s site) spots() []*spot {
	s.lot.mu.Lock()
	defer s.lot.mu.Unlock()
	return s.lot.spots["sandbox"]
}
