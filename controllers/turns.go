package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// turns lets one call at a time work on a pod:
//
//   - a call joins before it reads the pod, and leaves when it returns;
//   - it takes the turn only for its work in the kernel, and waits for it at most until its context ends;
//   - early hooks go before others, each group in order of arrival;
//   - the turns used are counted. If the count has changed since a call read the pod, another call has worked on the pod, and the
//     call starts again. A call that starts again does not count its turn, so it makes no other call start again.
//
// Only pods that a call works on are held. The zero value is ready.
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

// errOvertaken means that another call worked on the pod after this one had read it. Ensure starts again.
var errOvertaken = errors.New("another call has worked on the pod meanwhile")

// ticket is one call's membership in the turns of one pod.
type ticket struct {
	all *turns
	uid string
	*turn
	seen int // turns used when the pod was read, the call's own included
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
	return &ticket{all: t, uid: uid, turn: pod, seen: pod.used}
}

func (k *ticket) leave() {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	if k.calls--; k.calls == 0 {
		delete(k.all.pod, k.uid)
	}
}

// mark is called before the pod is read: turns used from now on overtake the call. It reports whether no turn is under way.
func (k *ticket) mark() (free bool) {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	k.seen = k.used
	return !k.held
}

// unchanged reports whether no turn was used since mark, and none is under way.
func (k *ticket) unchanged() bool {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	return k.used == k.seen && !k.held
}

// take waits for the turn and returns the function that ends it.
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
	if !k.giveUp(mine) { // the turn came at the same moment
		k.pass()
	}
	return nil, fmt.Errorf("wait for another call that works on the pod: %w", ctx.Err())
}

// use counts the caller's turn. It reports false, and counts nothing, if another turn was used since mark.
func (k *ticket) use() bool {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	if k.used != k.seen {
		return false
	}
	k.used++
	k.seen++
	return true
}

// queue takes the turn and returns nil if the turn is free. Otherwise it returns a channel that is closed when the turn has come.
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

// giveUp takes the caller out of the queue. It reports whether the caller was still in it.
func (k *ticket) giveUp(mine chan struct{}) bool {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	before := len(k.early) + len(k.late)
	is := func(other chan struct{}) bool { return other == mine }
	k.early, k.late = slices.DeleteFunc(k.early, is), slices.DeleteFunc(k.late, is)
	return len(k.early)+len(k.late) < before
}

// pass ends the turn and gives it to the next call.
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

// ifLast calls f unless another call has used a turn since mark. f must be short and must not use turns.
func (k *ticket) ifLast(f func()) {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	if k.used == k.seen {
		f()
	}
}
