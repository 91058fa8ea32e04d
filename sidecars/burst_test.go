package sidecars

import (
	"fmt"
	"testing"
	"time"
)

// What a look costs the runtime does not grow with the other pods of the node.
func TestManyPodsThatStartAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, n *fakeNode, agent func() (*Manager, func())) { //nolint:thelper // it is the test itself
		const pods = 100
		m, stop := agent()
		for i := range pods {
			m.Follow(sandboxOf(fmt.Sprint("u", i)))
		}
		after(5 * time.Second)
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
