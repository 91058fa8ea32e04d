package agent

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"istio-pod-network-controller/internal/podnet"
)

// Bounds of the list that first finds share: how long it is used, and how long it may take.
const (
	firstListAge     = 5 * time.Second
	firstListTimeout = 2 * time.Second
)

// firstFinds finds sandboxes. An agent that starts looks for the sandboxes of all pods of its node at once, and a runtime goes through all
// of them for each question:
//
//   - the first call asks the runtime for one list of all sandboxes, which other calls wait for;
//   - the first call for each pod within firstListAge uses that list, and reads the sandbox's status from the runtime;
//   - every further call for a pod, and one whose pod has no running sandbox in the list, asks the runtime anew, and so finds a sandbox that
//     is newer than the list;
//   - after firstListAge every call asks the runtime, and nothing is kept.
type firstFinds struct {
	runtime runtimeFinder

	start sync.Once
	list  atomic.Pointer[firstList] // nil after firstListAge
}

// firstList is the list, and who has used it.
type firstList struct {
	made chan struct{} // closed when find and err are set
	find func(context.Context, podnet.Sandbox) (podnet.Sandbox, error)
	err  error
	seen sync.Map // UIDs
}

// Find completes a Sandbox as the runtime's Find does.
func (f *firstFinds) Find(ctx context.Context, pod podnet.Sandbox) (podnet.Sandbox, error) {
	f.start.Do(func() {
		l := &firstList{made: make(chan struct{})}
		f.list.Store(l)
		time.AfterFunc(firstListAge, func() { f.list.Store(nil) })
		go l.make(context.WithoutCancel(ctx), f.runtime)
	})
	if l := f.list.Load(); l != nil && l.first(pod.UID) {
		select {
		case <-l.made:
		case <-ctx.Done():
			return podnet.Sandbox{}, ctx.Err()
		}
		if l.err == nil {
			if found, err := l.find(ctx, pod); !errors.Is(err, podnet.ErrNotReady) {
				return found, err
			}
		}
	}
	return f.runtime.Find(ctx, pod)
}

func (l *firstList) make(ctx context.Context, runtime runtimeFinder) {
	ctx, cancel := context.WithTimeout(ctx, firstListTimeout)
	defer cancel()
	defer close(l.made)
	l.find, l.err = runtime.FindAll(ctx)
}

// first reports whether this is the pod's first call.
func (l *firstList) first(uid string) bool {
	_, before := l.seen.LoadOrStore(uid, struct{}{})
	return !before
}
