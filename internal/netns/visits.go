package netns

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// grace is how long a call may go on after its deadline before Visit returns without it.
const grace = 50 * time.Millisecond

// Visits counts, for each namespace, the calls that have not returned by their deadline. Processes of a pod can keep the kernel busy
// with their own transactions, and a call that waits inside the kernel cannot be ended.
type Visits struct {
	mu   sync.Mutex
	late map[ID]int
}

// NewVisits returns an empty Visits.
func NewVisits() *Visits { return &Visits{late: map[ID]int{}} }

// Visit calls f with the namespace that open returns for path, on a thread inside it, and returns what f returns. A panic of f is returned
// as an error.
//
// Visit returns soon after the deadline of ctx, also if f does not: f then ends in the background, and the namespace stays open until it
// has. Until then every other call for this namespace is refused, by any path; calls for other namespaces are not.
// f begins nothing new once its context has ended.
func Visit[T any](ctx context.Context, v *Visits, path string, open func(string) (*NS, error), f func(context.Context, *NS) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if err := ctx.Err(); err != nil {
		return none, fmt.Errorf("program network namespace: %w", err)
	}
	ns, err := open(path)
	if err != nil {
		return none, err
	}
	id := ns.ID()
	if v.has(id) {
		err := fmt.Errorf("program network namespace %q: the kernel has not finished an earlier call for it: %w", path, context.DeadlineExceeded)
		return none, errors.Join(err, ns.Close())
	}
	done := make(chan result, 1)
	go func() {
		var r result
		err := ns.runInside(func() (err error) {
			ns.thread = unix.Gettid()
			defer func() { ns.thread = 0 }()
			r.value, err = f(ctx, ns)
			return err
		})
		r.err = errors.Join(err, ns.Close())
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
	v.add(id, 1)
	go func() { <-done; v.add(id, -1) }()
	return none, fmt.Errorf("program network namespace %q: the kernel has not answered: %w", path, ctx.Err())
}

func (v *Visits) add(id ID, n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.late[id] += n; v.late[id] == 0 {
		delete(v.late, id)
	}
}

func (v *Visits) has(id ID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.late[id] > 0
}
