package sidecars

import (
	"fmt"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// What a node with a hundred of Istio's proxies costs while nothing changes: nothing is asked of the API server, and the agent holds little of each.
func TestIstio_hundredPodsAtRest_askNothingAndHoldLittle(t *testing.T) {
	const pods, most = 100, 50 << 10
	log.SetLogger(logr.Discard()) // without one each logger with values is held
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		withMesh(n)
		n.vault.lifetime = 12 * time.Hour
		m, stop := agent()
		before, goroutines := held(), goruntime.NumGoroutine()
		for i := range pods {
			m.Follow(sandboxOf(fmt.Sprint("u", i)))
		}
		n.after(time.Minute)
		if len(n.running()) != pods {
			t.Fatalf("%d proxies run", len(n.running()))
		}
		asked := n.requests()
		n.after(2 * time.Minute)
		if more := n.requests() - asked; more != 0 {
			t.Errorf("%d requests in 2 minutes", more)
		}
		each := (held() - before) / pods
		t.Logf("a proxy: %d bytes with what the fakes have of it, %.1f goroutines; %d requests to start it", each,
			float64(goruntime.NumGoroutine()-goroutines)/pods, asked/pods)
		if each > most {
			t.Errorf("%d bytes for each proxy, want %d at most", each, most)
		}
		stop()
	})
}

// held is what the program holds in its heap and stacks.
func held() int64 {
	goruntime.GC()
	var of goruntime.MemStats
	goruntime.ReadMemStats(&of)
	return int64(of.HeapAlloc + of.StackInuse)
}

// requests is how often the API server was asked.
func (n *fakeNode) requests() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.meshed.asked + n.vault.tokens
}
