package controllers

import (
	"maps"
	"slices"
	"sync"
	"time"

	"istio-pod-network-controller/internal/podnet"
)

// State is the outcome of the last work on a pod.
type State string

// The states. An Entry of a pod that could not be read yet has none.
const (
	Programmed State = "programmed"
	Removed    State = "removed"
	FailedPod  State = "failed"
	InvalidPod State = "invalid" // it failed, and its owner has to correct it
	ByOthers   State = "others"
)

// Entry is what the agent remembers of one pod.
type Entry struct {
	Sandbox podnet.Sandbox
	State   State
	// compiled has the rules that were last in force in the sandbox; nil if the agent knows of none.
	compiled *compiled
	Findings
	hold hold
	// Retry means that the last visit did not learn how the pod is. It is visited again soon.
	Retry bool
	// checked is when the pod was visited last, unless that visit was left to the next check.
	checked time.Time
}

// Ledger remembers the newest sandbox of each pod. The PodWatch and metrics use it. It is no proof that a namespace holds its rules.
type Ledger struct {
	mu   sync.Mutex
	pods map[string]Entry // by the pod's UID; the pods of one node are few enough to search
}

// NewLedger returns an empty Ledger.
func NewLedger() *Ledger { return &Ledger{pods: map[string]Entry{}} }

// Put remembers an entry in place of the pod's older sandbox. It reports false, and changes nothing, if e is the older one.
func (l *Ledger) Put(e Entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, ok := l.pods[e.Sandbox.UID]; ok && old.Sandbox.ID != e.Sandbox.ID && old.Sandbox.NewerThan(e.Sandbox) {
		return false
	}
	if e.checked.IsZero() {
		e.checked = time.Now()
	}
	l.pods[e.Sandbox.UID] = e
	return true
}

// Mark notes the state of a pod, unless it is empty, and what is known of its sandbox. Its rules stay as they are, because they stay in the kernel.
// retry has the pod visited again soon.
func (l *Ledger) Mark(s podnet.Sandbox, state State, retry bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.pods[s.UID]
	another := ok && s.ID != "" && s.ID != e.Sandbox.ID
	switch {
	case another && e.Sandbox.NewerThan(s):
		return
	case !ok || another:
		e = Entry{Sandbox: s}
	case s.ID == e.Sandbox.ID && s.NetNS != "":
		e.Sandbox = s
	}
	if state != "" {
		e.State = state
	}
	e.Retry, e.checked = retry, time.Now()
	l.pods[e.Sandbox.UID] = e
}

// found replaces the findings in a sandbox, if it is the pod's.
func (l *Ledger) found(s podnet.Sandbox, f Findings) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e, ok := l.pods[s.UID]; ok && e.Sandbox.ID == s.ID {
		e.Findings, e.checked = f, time.Now()
		l.pods[s.UID] = e
	}
}

// asked notes that a sandbox's first container had been running for so long when the rules of e came into force. It reports false, and changes nothing, if
// that is known, or the pod has another sandbox by now.
func (l *Ledger) asked(e Entry, late time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, ok := l.pods[e.Sandbox.UID]
	if !ok || now.Sandbox.ID != e.Sandbox.ID || now.rulesAt != e.rulesAt {
		return false
	}
	now.late, now.rulesAt = late, time.Time{}
	l.pods[e.Sandbox.UID] = now
	return true
}

// Forget drops a sandbox. A pod that failed stays without one: a runtime that was refused a sandbox removes it, and the pod waits for the next.
func (l *Ledger) Forget(sandboxID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, e := range l.pods {
		switch {
		case sandboxID == "" || e.Sandbox.ID != sandboxID:
		case e.State == FailedPod || e.State == InvalidPod:
			s := podnet.Sandbox{Namespace: e.Sandbox.Namespace, Name: e.Sandbox.Name, UID: uid}
			l.pods[uid] = Entry{Sandbox: s, State: e.State, checked: e.checked}
		default:
			delete(l.pods, uid)
		}
	}
}

// ForgetPod drops a pod.
func (l *Ledger) ForgetPod(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pods, uid)
}

// Others returns the entries of pods with a name, except the one with the given UID: predecessors, or a successor.
func (l *Ledger) Others(namespace, name, uid string) (out []Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for other, e := range l.pods {
		if other != uid && e.Sandbox.Name == name && e.Sandbox.Namespace == namespace {
			out = append(out, e)
		}
	}
	return out
}

// Of returns what is remembered of a pod.
func (l *Ledger) Of(uid string) (Entry, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.pods[uid]
	return e, ok
}

// Entries returns all entries.
func (l *Ledger) Entries() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.pods))
}
