package node

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lease is the Lease that agents write.
type lease struct {
	mu     sync.Mutex
	record *resourcelock.LeaderElectionRecord
	away   map[string]bool // agents that the API server does not answer
	reads  int
}

// leaseOf is the Lease as one agent reads and writes it. It implements resourcelock.Interface.
type leaseOf struct {
	*lease
	agent string
	seen  resourcelock.LeaderElectionRecord
}

func (l *leaseOf) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	if l.away[l.agent] {
		return nil, nil, errors.New("the API server is away")
	}
	if l.record == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, leaseName)
	}
	l.seen = *l.record
	text, err := json.Marshal(l.record)
	out := *l.record
	return &out, text, err
}

func (l *leaseOf) Create(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.record != nil {
		return errors.New("it is there")
	}
	l.record, l.seen = &r, r
	return nil
}

func (l *leaseOf) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away[l.agent] {
		return errors.New("the API server is away")
	}
	if l.seen != *l.record {
		return apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, leaseName, nil)
	}
	l.record, l.seen = &r, r
	return nil
}

func (*leaseOf) RecordEvent(string)   {}
func (l *leaseOf) Identity() string   { return l.agent }
func (l *leaseOf) Describe() string   { return leaseName }
func (l *leaseOf) readCount() (n int) { l.mu.Lock(); defer l.mu.Unlock(); return l.reads }

func (l *lease) setAway(agent string, away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away[agent] = away
}

// working are the agents that do the work now.
type working struct {
	mu  sync.Mutex
	all map[string]bool
}

func (w *working) set(agent string, works bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all[agent] = works; !works {
		delete(w.all, agent)
	}
}

// one returns the agent that works, if exactly one does, or "".
func (w *working) one() (out string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) != 1 {
		return ""
	}
	for out = range w.all {
	}
	return out
}

// start starts an agent. ended is closed once it has ended.
func (w *working) start(t *testing.T, l *lease, agent string) (stop context.CancelFunc, ended chan struct{}) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended = make(chan struct{})
	e := election{lock: &leaseOf{lease: l, agent: agent}, work: func(ctx context.Context) {
		w.set(agent, true)
		<-ctx.Done()
		w.set(agent, false)
	}}
	go func() {
		defer close(ended)
		if err := e.Start(ctx); err != nil {
			t.Error(err)
		}
	}()
	return stop, ended
}

// Whatever becomes of an agent or its way to the API server, one agent works soon, and no agent ends.
func TestElection_agentsComeAndGo_oneWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, w := &lease{away: map[string]bool{}}, &working{all: map[string]bool{}}
		stops, ended := map[string]context.CancelFunc{}, map[string]chan struct{}{}
		for _, agent := range []string{"a", "b", "c"} {
			stops[agent], ended[agent] = w.start(t, l, agent)
		}
		after := func(d time.Duration) { <-time.After(d); synctest.Wait() }
		after(time.Second)
		first := w.one()
		if first == "" {
			t.Fatal("after the start: not one agent works")
		}

		stops[first]()
		after(0)
		<-ended[first]
		after(leaseRetry * 22 / 10) // the Lease was given back
		second := w.one()
		if second == "" || second == first {
			t.Fatalf("after %s has ended, %q works", first, second)
		}

		l.setAway(second, true)
		after(leaseRenew + leaseRetry)
		if got := w.one(); got != "" {
			t.Errorf("without an answer from the API server, %s works", got)
		}
		after(leaseTime + leaseRetry*22/10) // the others may have seen the last renewal so late, and look so seldom
		if third := w.one(); third == "" || third == second {
			t.Errorf("while %s is away, %q works", second, third)
		}
		l.setAway(second, false)
		before := (&leaseOf{lease: l}).readCount()
		after(10 * time.Minute)
		if w.one() == "" {
			t.Error("not one agent works in the end")
		}
		if reads := (&leaseOf{lease: l}).readCount() - before; reads > 90 {
			t.Errorf("two agents have read the Lease %d times in ten minutes", reads)
		}
		for agent, stop := range stops {
			stop()
			<-ended[agent]
		}
		synctest.Wait()
	})
}

// An agent that was killed could not give its Lease back, and takes it up again under the same name.
func TestElection_killedAgentStarts_worksAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, w := &lease{away: map[string]bool{}}, &working{all: map[string]bool{}}
		for _, killed := range []bool{true, false} {
			ctx, stop := context.WithCancel(t.Context())
			e := election{lock: &leaseOf{lease: l, agent: "a"}, work: func(ctx context.Context) {
				w.set("a", true)
				<-ctx.Done()
				w.set("a", false)
			}}
			l.setAway("a", false)
			ended := make(chan error)
			go func() { ended <- e.Start(ctx) }()
			<-time.After(time.Second)
			synctest.Wait()
			if w.one() != "a" {
				t.Errorf("killed %v: it does not work a second after its start", !killed)
			}
			l.setAway("a", killed)
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
	})
}
