package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// turns lets one call at a time work on a pod:
//
//   - a call joins before it reads the pod, and leaves when it returns;
//   - it takes the turn only for its work in the kernel, and waits for it at most until its context ends;
//   - the turns used are counted. If the count has changed since a call read the pod, another call has worked on the pod, and the
//     call starts again. A call that starts again does not count its turn, so it makes no other call start again.
//
// Only pods that a call works on are held. The zero value is ready.
type turns struct {
	mu  sync.Mutex
	pod map[string]*turn
}

type turn struct {
	calls int           // that have joined
	held  chan struct{} // has an element while a call has the turn
	used  int
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
		pod = &turn{held: make(chan struct{}, 1)}
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
	return len(k.held) == 0
}

// unchanged reports whether no turn was used since mark, and none is under way.
func (k *ticket) unchanged() bool {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	return k.used == k.seen && len(k.held) == 0
}

// take waits for the turn and returns the function that ends it.
func (k *ticket) take(ctx context.Context) (end func(), err error) {
	select {
	case k.held <- struct{}{}:
		return func() { <-k.held }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for another call that works on the pod: %w", ctx.Err())
	}
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

// ifLast calls f unless another call has used a turn since mark. f must be short and must not use turns.
func (k *ticket) ifLast(f func()) {
	k.all.mu.Lock()
	defer k.all.mu.Unlock()
	if k.used == k.seen {
		f()
	}
}
