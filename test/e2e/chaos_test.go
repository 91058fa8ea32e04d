package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"istio-pod-network-controller/test/e2e/chaos"
)

// Chaos lasts so long, calms left out, unless E2E_CHAOS says otherwise; convergeWithin is how long a pod may then take to be right.
const (
	chaosLasts     = time.Minute
	convergeWithin = 30 * time.Second
)

// chaosRun is one run of TestChaos.
type chaosRun struct {
	*space
	t      *testing.T
	began  time.Time
	judge  *chaos.Judge
	agents *agentWatch
	specs  map[string]*corev1.Pod // of every pod, by name
	// references are the texts of the bystanders' rules, by what the pod asks for.
	references map[string]string
	// reports and handles are what the bystanders' conditions and rules were at the start.
	reports, handles map[string]string
	worldPort        int

	mu       sync.Mutex
	seen     map[string]*corev1.Pod // by name, as last listed
	netns    map[string]string      // path of a pod's network namespace by UID, as this program sees it
	touched  map[string]string      // the network namespace that chaos wrote to, by the pod's UID
	touches  map[string][]time.Time // when chaos wrote to a pod, by its UID
	sandbox  map[string]string      // path by sandbox ID
	done     map[string]int         // actions by kind and target
	failed   map[string]int
	told     map[string]bool // faults that were told already
	notReady map[string]bool // bystanders that the node calls so
	flaps    int             // how often it began to
	worst    time.Duration   // of a calm
}

// Everything around the agent fails, at random, and its promises hold:
//
//   - no connection of a pod that asks passes its proxy by, but while chaos itself has rewritten the pod's rules; that is repaired within
//     the interval of verification;
//   - a pod whose rules nobody touched keeps its True condition, and its rules are never written again;
//   - when the node is able to start pods again, and the kubelet has started the pod, all is as it should be within 30 s;
//   - the agent's memory and descriptors end where a fresh agent's are.
//
// The seed is printed: E2E_CHAOS_SEED takes it again. Not parallel: it makes the node unfit for anything else.
//
//e2e:rounds required
func TestChaos(t *testing.T) {
	lasting, seed := duration(t, "E2E_CHAOS", chaosLasts), rand.Uint64() //nolint:gosec // any other seed would do
	if text := os.Getenv("E2E_CHAOS_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("chaos for %s with the seed %d: E2E_CHAOS=%[1]s E2E_CHAOS_SEED=%[2]d does the same again", lasting, seed)

	r := newChaosRun(t)
	r.start()
	before := r.warmAgent()
	for _, round := range chaos.Plan(seed, lasting, chaosVictims()) {
		r.round(round)
		r.calm()
	}
	r.wantAgentAsBefore(before)
	r.wantBystandersUntouched()
	r.table(before)
}

func newChaosRun(t *testing.T) *chaosRun {
	t.Helper()
	s := newSpace(t, asked())
	s.awaitPolicy(t)
	interval := s.verifyInterval(t)
	bound := interval*5/4 + 5*time.Second // the pods' looks are spread over the interval; the cores are busy
	t.Logf("the agent verifies every %s: a repair may take %s", interval, bound)
	return &chaosRun{
		space: s, t: t, began: time.Now(), judge: chaos.NewJudge(bound), agents: &agentWatch{},
		references: map[string]string{}, seen: map[string]*corev1.Pod{}, netns: map[string]string{}, touched: map[string]string{}, touches: map[string][]time.Time{},
		sandbox: map[string]string{}, done: map[string]int{}, failed: map[string]int{}, told: map[string]bool{},
		reports: map[string]string{}, handles: map[string]string{}, notReady: map[string]bool{},
	}
}

// start makes the pods, waits until all are as they should be, and starts what looks at them until the test ends.
func (r *chaosRun) start() {
	r.t.Helper()
	r.serveChaosWorld()
	r.specs = r.chaosPods()
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(r.t.Context())
	r.t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { r.every(ctx, 500*time.Millisecond, r.keep) })
	for name := range r.specs {
		r.await(r.t, name, hasStatus(statusInitialized))
		r.await(r.t, name, readyOrNot)
	}
	r.learnReferences()
	wg.Go(func() { r.every(ctx, 200*time.Millisecond, r.watchAgent) })
	wg.Go(func() { r.every(ctx, 250*time.Millisecond, r.watchRepairs) })
	wg.Go(func() { r.every(ctx, 500*time.Millisecond, r.watchBystanders) })
	for name := range r.specs {
		wg.Go(func() { r.every(ctx, 50*time.Millisecond, func(ctx context.Context) { r.probe(ctx, name) }) })
	}
}

// every calls f again and again, with a pause between, until ctx ends.
func (r *chaosRun) every(ctx context.Context, pause time.Duration, f func(context.Context)) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for ctx.Err() == nil {
		f(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// round does what is planned: the node's actions beside the pods'.
func (r *chaosRun) round(round chaos.Round) {
	began := time.Now()
	var wg sync.WaitGroup
	for _, list := range []struct {
		actions []chaos.Action
		do      func(context.Context, chaos.Action) error
	}{{round.Node, r.onNode}, {round.Pods, r.onPod}} {
		wg.Go(func() {
			for _, a := range list.actions {
				if time.Since(began) > round.To-round.From {
					r.log("%s: left out, the round is over", a)
					continue
				}
				pause(r.t.Context(), time.Until(began.Add(a.At-round.From)))
				if a.Kind == chaos.OptOut { // the others need not wait for it
					wg.Go(func() { r.do(a, list.do) })
					continue
				}
				r.do(a, list.do)
			}
		})
	}
	wg.Wait()
}

func (r *chaosRun) do(a chaos.Action, f func(context.Context, chaos.Action) error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), 45*time.Second)
	defer cancel()
	r.log("%s", a)
	err := f(ctx, a)
	r.mu.Lock()
	defer r.mu.Unlock()
	key := string(a.Kind)
	if _, ok := r.specs[a.Target]; !ok {
		key += " " + a.Target
	}
	r.done[key]++
	if err != nil {
		r.failed[key]++
		r.log("%s: %v", a, err)
	}
}

// log says what happens, and when.
func (r *chaosRun) log(format string, args ...any) {
	fmt.Fprintf(r.t.Output(), "%7.1fs  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// fault is what breaks an invariant.
func (r *chaosRun) fault(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.judge.Fault(text)
	r.t.Errorf("%7.1fs  %s", time.Since(r.began).Seconds(), text)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
