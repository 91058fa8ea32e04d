package chaos

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// direct connections are excused for so long after a pod's rules were seen to be right: the server reads of them a little later.
const grace = time.Second

// Direction is that of a connection, as its pod sees it.
type Direction string

// The directions.
const (
	Inbound  Direction = "inbound"
	Outbound Direction = "outbound"
)

// Judge tells connections that are a fault of the agent from those that chaos itself made possible. A pod is told apart by its UID.
//
//   - Hold excuses a pod, before its rules are changed or it opts out;
//   - Release says that it is to be programmed from now on: it stays excused until Repaired, and has the bound's time for that;
//   - Gone ends both, with the pod's network namespace.
//
// The clock of a repair stands still while no agent can work: its hands are moved by the caller.
type Judge struct {
	// Bound is how long a repair may take.
	Bound time.Duration

	mu     sync.Mutex
	pods   map[string]*pod
	counts Counts
	last   map[Direction]map[string]time.Time
	faults []string
}

// Counts are what a Judge has seen.
type Counts struct {
	Proxied, Excused, Direct map[Direction]int
	Repairs                  int
	WorstRepair              time.Duration
}

type pod struct {
	held    int
	open    bool
	since   time.Duration
	closed  time.Time
	overdue bool
}

// NewJudge has seen nothing.
func NewJudge(bound time.Duration) *Judge {
	return &Judge{
		Bound: bound, pods: map[string]*pod{},
		counts: Counts{Proxied: map[Direction]int{}, Excused: map[Direction]int{}, Direct: map[Direction]int{}},
		last:   map[Direction]map[string]time.Time{Inbound: {}, Outbound: {}},
	}
}

func (j *Judge) pod(uid string) *pod {
	p := j.pods[uid]
	if p == nil {
		p = &pod{}
		j.pods[uid] = p
	}
	return p
}

// Hold excuses a pod until it is released and repaired.
func (j *Judge) Hold(uid string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.pod(uid).held++
}

// Release starts the clock of the pod's repair.
func (j *Judge) Release(uid string, clock time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.pod(uid)
	p.held--
	p.open, p.since, p.overdue = true, clock, false
}

// Open lists the pods that nobody holds and that are not repaired.
func (j *Judge) Open() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var open []string
	for uid, p := range j.pods {
		if p.open && p.held == 0 {
			open = append(open, uid)
		}
	}
	slices.Sort(open)
	return open
}

// Repaired ends a pod's excuse: its rules were seen to be right.
func (j *Judge) Repaired(uid string, clock time.Duration, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.pod(uid)
	if !p.open || p.held > 0 {
		return
	}
	p.open, p.closed = false, now
	j.counts.Repairs++
	j.counts.WorstRepair = max(j.counts.WorstRepair, clock-p.since)
}

// Gone ends a pod's excuse with its network namespace. There is nothing left to be repaired.
func (j *Judge) Gone(uid string, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if p := j.pod(uid); p.open && p.held == 0 {
		p.open, p.closed = false, now
	}
}

// Overdue names, once each, the pods whose repair takes longer than the bound.
func (j *Judge) Overdue(clock time.Duration) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var late []string
	for uid, p := range j.pods {
		if p.open && p.held == 0 && !p.overdue && clock-p.since > j.Bound {
			p.overdue = true
			late = append(late, uid)
		}
	}
	slices.Sort(late)
	return late
}

// Proxied counts a connection that came to the pod's proxy.
func (j *Judge) Proxied(d Direction, uid string, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts.Proxied[d]++
	j.last[d][uid] = now
}

// Direct counts a connection that passed the pod's proxy by, and reports whether it is excused. If not, what was seen is a fault.
func (j *Judge) Direct(d Direction, uid, seen string, now time.Time) (excused bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if p := j.pods[uid]; p != nil && (p.held > 0 || p.open || now.Before(p.closed.Add(grace))) {
		j.counts.Excused[d]++
		return true
	}
	j.counts.Direct[d]++
	j.fault(fmt.Sprintf("%s connection of %s passed the proxy by: %s", d, uid, seen))
	return false
}

// LastProxied is when a connection of the pod last came to its proxy.
func (j *Judge) LastProxied(d Direction, uid string) time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last[d][uid]
}

// manyFaults bounds what is kept: the first ones tell most.
const manyFaults = 50

func (j *Judge) fault(text string) {
	if len(j.faults) < manyFaults {
		j.faults = append(j.faults, text)
	}
}

// Fault keeps what broke an invariant.
func (j *Judge) Fault(text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.fault(text)
}

// Faults lists what broke an invariant.
func (j *Judge) Faults() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.faults)
}

// Counts gives what was seen so far.
func (j *Judge) Counts() Counts {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := j.counts
	c.Proxied, c.Excused, c.Direct = maps.Clone(c.Proxied), maps.Clone(c.Excused), maps.Clone(c.Direct)
	return c
}
