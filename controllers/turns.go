package controllers

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// turns has one pod worked on by one call at a time:
//
//   - a call joins before it reads anything, and leaves at its end;
//   - it takes its turn for its work in the kernel only, and waits for it no longer than its context lasts;
//   - of those that wait the early ones come first, each kind in the order of arrival;
//   - how many turns were used tells a call whether what it read before is still the newest. One that finds that it is not
//     has not used its turn: it makes no other call start again.
//
// A pod that no call has joined costs nothing. The zero value is ready.
type turns struct {
	mu  sync.Mutex
	pod map[string]*turn
}

type turn struct {
	calls       int // that have joined
	held        bool
	used        int
	early, late []chan struct{}
}

// ticket is one call's part in a pod's turns.
type ticket struct {
	all *turns
	uid string
	*turn
}

func (t *turns) join(uid string) *ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pod == nil {
		t.pod = map[string]*turn{}
	}
	pod := t.pod[uid]
	if pod == nil {
		pod = &turn{}
		t.pod[uid] = pod
	}
	pod.calls++
	return &ticket{all: t, uid: uid, turn: pod}
}

func (k *ticket) leave() {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	if k.calls--; k.calls == 0 {
		delete(k.all.pod, k.uid)
	}
}

// count gives how many turns were used so far.
func (k *ticket) count() int {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	return k.used
}

// use counts the turn that the call has taken, unless another one was used since count gave seen. It reports whether it did.
func (k *ticket) use(seen int) bool {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	if k.used != seen {
		return false
	}
	k.used++
	return true
}

// take waits for the turn and gives the function that ends it.
func (k *ticket) take(ctx context.Context, early bool) (end func(), err error) {
	mine := k.queue(early)
	if mine == nil {
		return k.pass, nil
	}
	select {
	case <-mine:
		return k.pass, nil
	case <-ctx.Done():
	}
	if !k.giveUp(mine) { // it came at the same moment
		k.pass()
	}
	return nil, fmt.Errorf("wait for another call that works on the pod: %w", ctx.Err())
}

// queue takes the turn and gives nil, or gives what is closed when it has come.
func (k *ticket) queue(early bool) chan struct{} {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	if !k.held {
		k.held = true
		return nil
	}
	mine := make(chan struct{})
	if early {
		k.early = append(k.early, mine)
	} else {
		k.late = append(k.late, mine)
	}
	return mine
}

// giveUp reports whether the caller was still waiting.
func (k *ticket) giveUp(mine chan struct{}) bool {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	before := len(k.early) + len(k.late)
	is := func(other chan struct{}) bool { return other == mine }
	k.early, k.late = slices.DeleteFunc(k.early, is), slices.DeleteFunc(k.late, is)
	return len(k.early)+len(k.late) < before
}

// pass ends a turn and wakes the next call.
func (k *ticket) pass() {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	var next chan struct{}
	switch {
	case len(k.early) > 0:
		next, k.early = k.early[0], k.early[1:]
	case len(k.late) > 0:
		next, k.late = k.late[0], k.late[1:]
	default:
		k.held = false
		return
	}
	close(next)
}

// ifLast calls f unless a turn was used since count gave seen. f must be short and must not use turns.
func (k *ticket) ifLast(seen int, f func()) {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	if k.used == seen {
		f()
	}
}
