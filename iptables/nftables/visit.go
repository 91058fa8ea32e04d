package nftables

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"istio-pod-network-controller/internal/netns"
)

// grace is what a call may take beyond its deadline to come back by itself.
const grace = 50 * time.Millisecond

// visits knows the calls that have not come back by their deadline. Processes of a pod can keep the kernel busy with their own
// transactions, and nothing ends a call that waits inside it.
type visits struct {
	mu   sync.Mutex
	late map[string]int
}

func (v *visits) add(path string, n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.late[path] += n; v.late[path] == 0 {
		delete(v.late, path)
	}
}

func (v *visits) has(path string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.late[path] > 0
}

// visit calls f with the namespace at path and a socket inside it, and gives what f gives. It comes back soon after the
// deadline of ctx whatever f does: f then ends by itself, with its descriptors and its lock. A panic of f is an error.
func visit[T any](ctx context.Context, b *Backend, path string, f func(*netns.NS, *socket) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if err := ctx.Err(); err != nil {
		return none, fmt.Errorf("program network namespace: %w", err)
	}
	if b.visits.has(path) {
		return none, fmt.Errorf("program network namespace %q: the kernel has not finished an earlier call for it", path)
	}
	done := make(chan result, 1)
	go func() {
		var r result
		r.err = netns.Contain(func() (err error) { r.value, err = open(b.guard, path, f); return err })
		done <- r
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
	}
	wait := time.NewTimer(grace)
	defer wait.Stop()
	select {
	case r := <-done:
		return r.value, r.err
	case <-wait.C:
	}
	b.visits.add(path, 1)
	go func() { <-done; b.visits.add(path, -1) }()
	return none, fmt.Errorf("program network namespace %q: the kernel has not answered: %w", path, ctx.Err())
}

func open[T any](guard netns.Guard, path string, f func(*netns.NS, *socket) (T, error)) (value T, err error) {
	ns, err := guard.Open(path)
	if err != nil {
		return value, err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	s, err := dial(ns)
	if err != nil {
		return value, err
	}
	defer s.close()
	return f(ns, s)
}
