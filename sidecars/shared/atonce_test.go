package shared

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
)

// onReport calls back before each report.
type onReport struct {
	sidecars.Reporter
	before func()
}

func (r onReport) Report(s podnet.Sandbox, status sidecars.Status) {
	r.before()
	r.Reporter.Report(s, status)
}

// For the race detector: the proxy ends while a round reports its pods.
func TestPublish_proxyEndsMeanwhile_isSafe(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.startProxy()
	var ends atomic.Bool
	end := sync.OnceFunc(func() {
		go n.stopProxy()
		pause(t.Context(), 300*time.Millisecond)
	})
	m := n.agent(func(m *Manager) {
		m.Reporter = onReport{m.Reporter, func() {
			if ends.Load() {
				end()
			}
		}}
	})
	pods := n.follow(m, "a", "b", "c")
	n.served(m, "a b c")
	n.eventually("its end is waited for", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.waits > 0 })
	n.change(func() {
		for _, p := range n.pods {
			p.refusal = "no" // which is reported
		}
	})
	ends.Store(true)
	m.Notify("edge")
	pause(t.Context(), time.Second) // a question would have one wait for the other
	for _, s := range pods {
		n.unserved(m, s)
	}
}
