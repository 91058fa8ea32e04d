package shared

import (
	"maps"
	"sync"
	"time"

	"istio-pod-network-controller/internal/podnet"
)

// following are the sandboxes whose pods have chosen a profile.
type following struct {
	mu  sync.Mutex
	all map[podnet.Key]followed
}

type followed struct {
	sandbox podnet.Sandbox
	// told counts the events that may have changed the pod. known is the count when the pod was read as it is in force.
	told, known int
	// since is when the first change came that is not in force yet. Zero: none, or the change was refused.
	since time.Time
}

// follow adds a sandbox, and forgets the pod's earlier sandboxes. look: the pod may have changed. news reports whether a round is to be made.
func (f *following) follow(s podnet.Sandbox, look bool) (news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := s.Key()
	maps.DeleteFunc(f.all, func(other podnet.Key, _ followed) bool { return other.PodUID == s.UID && other != key })
	now, known := f.all[key]
	if known && !look {
		return false
	}
	news = !known || now.told == now.known || now.sandbox != s // otherwise a round is due already
	now.sandbox = s
	now.told++
	if now.since.IsZero() {
		now.since = time.Now()
	}
	f.all[key] = now
	return news
}

func (f *following) leave(podUID string) (left bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(f.all)
	maps.DeleteFunc(f.all, func(key podnet.Key, _ followed) bool { return key.PodUID == podUID })
	return len(f.all) < before
}

func (f *following) has(podUID string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.all {
		if key.PodUID == podUID {
			return true
		}
	}
	return false
}

func (f *following) now() map[podnet.Key]followed {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.all)
}

// inForce notes that a pod's changes up to told were in force at a time. It returns how long they took, and whether a change was awaited.
func (f *following) inForce(key podnet.Key, told int, at time.Time) (took time.Duration, measured bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, known := f.all[key]
	if !known {
		return 0, false
	}
	took, measured = time.Since(now.since), !now.since.IsZero()
	now.known, now.since = told, time.Time{}
	if now.told != told {
		now.since = at // at the earliest
	}
	f.all[key] = now
	return took, measured
}

// notMeasured leaves out a change of a pod that is refused: how long it takes is up to its owner.
func (f *following) notMeasured(key podnet.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now, known := f.all[key]; known {
		now.since = time.Time{}
		f.all[key] = now
	}
}
