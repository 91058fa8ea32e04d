package sidecars

import (
	"fmt"
	"testing"
	"time"
)

// What a look costs the runtime does not grow with the other pods of the node.
func TestManager_manyPodsAtOnce_allStart(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		const pods = 100
		m, stop := agent()
		for i := range pods {
			m.Follow(sandboxOf(fmt.Sprint("u", i)))
		}
		n.after(5 * time.Second)
		if got := len(n.running()); got != pods {
			t.Errorf("%d proxies run", got)
		}
		n.change(func() {
			t.Logf("%d lists of %d containers, %d calls that change something", n.asks, n.listed, n.calls)
			if n.asks > 10*pods || n.listed > 10*pods {
				t.Errorf("the runtime was asked for %d lists, of %d containers", n.asks, n.listed)
			}
		})
		stop()
	})
}

// A roll-out costs the runtime so much a proxy, however many wait for their turns.
func TestRollouts_manyPods_staysWithinBound(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) {
		const pods = 100
		n.profile.Spec.Rollout.MaxParallel = 5
		m, stop := agent()
		for i := range pods {
			m.Follow(sandboxOf(fmt.Sprint("u", i)))
		}
		n.after(5 * time.Second)
		n.change(func() { n.asks, n.profile.Generation, n.profile.Spec.Image = 0, 2, "localhost/haproxy:2" })
		began := time.Now()
		m.Notify("edge")
		for old := pods; old > 0; {
			n.after(10 * time.Millisecond)
			old = 0
			n.change(func() {
				for _, c := range n.containers {
					if c.Image != n.profile.Spec.Image {
						old++
					}
				}
			})
			if time.Since(began) > time.Minute {
				t.Fatalf("%d proxies are not upgraded", old)
			}
		}
		n.change(func() {
			t.Logf("%d lists in %s", n.asks, time.Since(began))
			if n.asks > 12*pods {
				t.Errorf("the runtime was asked for %d lists", n.asks)
			}
		})
		stop()
	})
}
