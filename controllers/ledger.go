package controllers

import (
	"slices"
	"strings"
	"sync"

	"istio-pod-network-controller/internal/podnet"
)

// State is what a sandbox came to.
type State string

// The states.
const (
	Programmed State = "programmed"
	Removed    State = "removed"
	FailedPod  State = "failed"
)

// Entry is what the agent remembers of one sandbox.
type Entry struct {
	Sandbox podnet.Sandbox
	State   State
}

// Ledger remembers sandboxes by their ID, or by the pod's UID for pods that failed before one was found. It is a shortcut
// for sweeps and metrics, never a reason to believe that a namespace holds its rules.
type Ledger struct {
	mu      sync.Mutex
	entries map[string]Entry
}

// NewLedger makes an empty one.
func NewLedger() *Ledger { return &Ledger{entries: map[string]Entry{}} }

// Put remembers a sandbox in place of all others of its pod: a pod has one that counts.
func (l *Ledger) Put(e Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetPod(e.Sandbox.UID)
	key := e.Sandbox.ID
	if key == "" {
		key = e.Sandbox.UID
	}
	l.entries[key] = e
}

// Fail marks the pod as failed. What is known of its sandbox stays, since its rules do.
func (l *Ledger) Fail(s podnet.Sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.Sandbox.UID == s.UID && s.ID == "" {
			s = e.Sandbox
		}
	}
	l.forgetPod(s.UID)
	key := s.ID
	if key == "" {
		key = s.UID
	}
	l.entries[key] = Entry{Sandbox: s, State: FailedPod}
}

// Forget drops a sandbox.
func (l *Ledger) Forget(sandboxID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.entries, sandboxID)
}

// ForgetPod drops every sandbox of a pod.
func (l *Ledger) ForgetPod(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetPod(uid)
}

// Of gives what is remembered of a pod.
func (l *Ledger) Of(uid string) (Entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.Sandbox.UID == uid {
			return e, true
		}
	}
	return Entry{}, false
}

// UIDs gives the pods that go by a name and are remembered.
func (l *Ledger) UIDs(namespace, name string) []string {
	var out []string
	for _, e := range l.Entries() {
		if e.Sandbox.Namespace == namespace && e.Sandbox.Name == name {
			out = append(out, e.Sandbox.UID)
		}
	}
	return out
}

// Entries gives all, by pod name.
func (l *Ledger) Entries() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Entry, 0, len(l.entries))
	for _, e := range l.entries {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Sandbox.Pod(), b.Sandbox.Pod()) })
	return out
}

func (l *Ledger) forgetPod(uid string) {
	for key, e := range l.entries {
		if e.Sandbox.UID == uid {
			delete(l.entries, key)
		}
	}
}
