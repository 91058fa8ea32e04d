package sidecars

import (
	"context"
	"errors"
	"time"

	"istio-pod-network-controller/internal/jitter"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/sidecar"
	"istio-pod-network-controller/sidecars/probe"
)

// watchPause is the time until a proxy is watched again after the runtime could not name its process.
const watchPause = 5 * time.Second

// tellPause is the shortest time between two looks at what the runtime tells of a proxy whose process has ended. Later it is one part in tellPart
// of the time since then, and silentPoll at most.
const (
	tellPause = 20 * time.Millisecond
	tellPart  = 2
)

// seenEnd is the end of a proxy's process. sure reports whether the kernel says so: a runtime lists the proxy as running for a while.
type seenEnd struct {
	at   time.Time
	sure bool
}

// watch has a sandbox looked at as soon as one of its proxies ends. ctx is Start's.
func watch(ctx context.Context, m *Manager, key podnet.Key, f *followed) {
	for id, a := range f.answers {
		if a.watched || a.ended {
			continue
		}
		a.watched = true
		f.answers[id] = a
		go func() {
			err := m.Runtime.Wait(ctx, id)
			for ; err != nil && !errors.Is(err, sidecar.ErrGone); err = m.Runtime.Wait(ctx, id) {
				if !jitter.Wait(ctx, watchPause) {
					return
				}
			}
			m.mu.Lock()
			if f := m.known[key]; f != nil {
				f.ends[id] = seenEnd{time.Now(), err == nil}
			}
			m.mu.Unlock()
			m.queue.Add(key)
		}()
	}
}

// believe takes a proxy whose process has ended for ended, also while the runtime lists it as running. It stays in the runtime until that agrees. If
// the kernel has not said that it has ended, the proxy is asked.
func (s ending) believe(seen map[string]seenEnd) {
	for i, c := range s.there {
		a := s.answers[c.ID]
		end, gone := seen[c.ID]
		if gone {
			a.gone, a.sure, a.probes.ReadyNow = end.at, end.sure, false
		}
		a.untold = !a.gone.IsZero() && c.State == sidecar.Running
		switch {
		case c.State == sidecar.Exited && a.gone.IsZero():
			a.gone, a.probes.ReadyNow = time.Now(), false
		case a.untold && a.sure:
			s.there[i].State = sidecar.Exited
		}
		s.answers[c.ID] = a
	}
}

// untold reports whether the runtime is to be asked again how a proxy has ended, and notes that: err is what it has answered.
func (s ending) untold(id string, err error) bool {
	a := s.answers[id]
	if !errors.Is(err, sidecar.ErrNotEnded) || time.Since(a.gone) > wordsTime {
		return false
	}
	a.untold = true
	s.answers[id] = a
	return true
}

// sooner returns the time until the next step: again, or less while the runtime does not tell of an end.
func (s ending) sooner(again time.Duration) time.Duration {
	for _, c := range s.there {
		if a := s.answers[c.ID]; a.untold {
			again = min(again, max(tellPause, time.Since(a.gone)/tellPart), probe.SilentPoll)
		}
	}
	return again
}
