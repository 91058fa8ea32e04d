package e2e

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// burst is how many pods start at once, unless E2E_BURST says otherwise. A node has room for some 240.
const burst = 20

func burstSize(t *testing.T) int {
	t.Helper()
	text := os.Getenv("E2E_BURST")
	if text == "" {
		return burst
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// Not parallel: it starts as many pods as the node takes.
//
//e2e:rounds core nri wait
func TestBurstNoFirstConnectionBypassesTheProxy(t *testing.T) {
	s := newSpace(t, nil)
	s.awaitPolicy(t)
	control := catchAll(t)
	s.create(t, dialer("control", nil, 0, control.port))
	s.await(t, "control", hasDialled)
	if control.none() {
		t.Fatal("a pod that did not ask reached nobody: the test would prove nothing")
	}
	caught, size := catchAll(t), burstSize(t)
	began := time.Now()
	for i := range size {
		s.create(t, dialer(fmt.Sprintf("dialer-%d", i), asked(), i, caught.port))
	}
	s.awaitAll(t, size+1, hasDialled)
	t.Logf("%d pods dialled %d times each in their first moments, within %s", size, dials, time.Since(began).Round(time.Millisecond))
	caught.wantNone(t)
	s.awaitAll(t, size+1, func(pod *corev1.Pod) error {
		if pod.Name == "control" {
			return nil
		}
		d, err := detailsOf(pod)
		late := size > burst && d.Hook == "verify" // in a large one pods wait for their container until a check finds that nobody listens
		if err == nil && !isReporter(d.Hook) && !late {
			err = fmt.Errorf("programmed by %q", d.Hook)
		}
		if err == nil && d.Late != "" {
			err = fmt.Errorf("it started %s before its rules", d.Late)
		}
		return err
	})
}
