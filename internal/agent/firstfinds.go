package agent

import (
	"context"
	"errors"
	"sync"
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
//   - after firstListAge every call asks the runtime.
type firstFinds struct {
	runtime runtimeFinder

	start  sync.Once
	listed chan struct{} // closed when find and err are set
	find   func(context.Context, podnet.Sandbox) (podnet.Sandbox, error)
	err    error

	mu   sync.Mutex
	made time.Time
	seen map[string]struct{} // UIDs; nil after firstListAge
}

// Find completes a Sandbox as the runtime's Find does.
func (f *firstFinds) Find(ctx context.Context, pod podnet.Sandbox) (podnet.Sandbox, error) {
	f.start.Do(func() {
		f.listed, f.made, f.seen = make(chan struct{}), time.Now(), map[string]struct{}{}
		go f.list(context.WithoutCancel(ctx))
	})
	if f.first(pod.UID) {
		select {
		case <-f.listed:
		case <-ctx.Done():
			return podnet.Sandbox{}, ctx.Err()
		}
		if f.err == nil {
			if found, err := f.find(ctx, pod); !errors.Is(err, podnet.ErrNotReady) {
				return found, err
			}
		}
	}
	return f.runtime.Find(ctx, pod)
}

func (f *firstFinds) list(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, firstListTimeout)
	defer cancel()
	defer close(f.listed)
	f.find, f.err = f.runtime.FindAll(ctx)
}

// first reports whether this is the pod's first call, while the list is used.
func (f *firstFinds) first(uid string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.made) > firstListAge {
		f.seen = nil
	}
	if f.seen == nil {
		return false
	}
	_, ok := f.seen[uid]
	f.seen[uid] = struct{}{}
	return !ok
}
