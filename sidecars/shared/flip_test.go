package shared

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A pod that comes and goes all the time does not have the proxy reload all the time: each reload may leave a worker behind.
func TestRound_podComesAndGoes_pausesGrow(t *testing.T) {
	t.Parallel()
	n, m, pods := newServing(t, "a", "hostile")
	reloads, reads := n.reloadCount(), n.readCount()
	for i := range 11 {
		chosen := "none"
		if i%2 == 1 {
			chosen = "edge"
		}
		n.edit(pods[1], func(p *fakePod) { p.chosen = chosen })
		if chosen == "none" {
			m.Unfollow(pods[1].UID)
		} else {
			m.Follow(pods[1], "edge")
		}
		if i == 6 {
			n.follow(m, "b")
		}
		pause(t.Context(), 1200*time.Millisecond)
	}
	if more, read := n.reloadCount()-reloads, n.readCount()-reads; more > 5 || read > 4 {
		t.Errorf("%d reloads and %d pods read in 13 s", more, read)
	}
	n.served(m, "a b")
	n.edit(pods[1], func(p *fakePod) { p.chosen = "edge" })
	m.Follow(pods[1], "edge")
	n.eventually("the pod says that it waits", func() bool { return strings.Contains(n.status(pods[1]).Message, "joins again after a pause") })
}

// Pods that cannot be read do not use up what a round may read.
func TestRound_manyUnreadablePods_delayNoOther(t *testing.T) {
	t.Parallel()
	n, m, _ := newServing(t)
	for i := range 2 * readsPerRound {
		m.Follow(n.pod(fmt.Sprintf("a%d", i), func(p *fakePod) { p.stopped = true }), "edge")
	}
	began := time.Now()
	n.follow(m, "z")
	n.served(m, "z")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the other pod has joined after %s", took)
	}
}
