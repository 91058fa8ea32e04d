package agent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/podnet"
)

// Bounds of what the agent writes about itself: the annotations of a pod may have 256 KiB in all.
const (
	maxSelfMessage = 300
	maxSelfFaults  = 10
)

// status returns what the agent writes about itself. pods reports whether a pod that got no rules is still there.
func (a *agent) status(ctx context.Context, count map[controllers.State]int, seen *outcomes, pods podFinder) agentstatus.Status {
	s := agentstatus.Status{
		Version: a.Build.Version, Revision: a.Build.Revision, Backend: a.backends.Name(),
		NotReady: a.faults(ctx), Entrance: a.entranceStates(ctx), Pods: map[string]int{}, LastError: seen.lastError(),
		Time: time.Now().UTC().Truncate(time.Second),
	}
	s.Ready = len(s.NotReady) == 0
	for state, n := range count {
		s.Pods[string(state)] = n
	}
	if n := seen.skippedPods(ctx, pods); n > 0 {
		s.Pods[agentstatus.Skipped] = n
	}
	if a.inspect != nil {
		s.Inspect = a.inspect()
	}
	return s
}

// faults returns the readiness checks that fail, one string each.
func (a *agent) faults(ctx context.Context) []string {
	var out []string
	for _, err := range a.ready.failing(ctx) {
		if len(out) == maxSelfFaults {
			break
		}
		out = append(out, oneLine(err.Error()))
	}
	return out
}

// entranceStates returns the entrances that are switched on. An early one that the runtime does not offer is down although the agent is ready.
func (a *agent) entranceStates(ctx context.Context) []agentstatus.Entrance {
	out := []agentstatus.Entrance{entranceState(string(controllers.Watch), a.core.check(ctx))}
	if n := a.nriEntrance; n != nil {
		err := n.Check(ctx)
		if err == nil && !n.Connected() { // Check passes then only if NRI is not required
			err = errors.New("the container runtime offers no NRI")
		}
		out = append(out, entranceState(string(controllers.NRI), err))
	}
	if a.CNI == CNIInstall {
		out = append(out, entranceState(string(controllers.CNI), a.cniState.Check(ctx)))
	}
	return out
}

func entranceState(name string, err error) agentstatus.Entrance {
	if err != nil {
		return agentstatus.Entrance{Name: name, Message: oneLine(err.Error())}
	}
	return agentstatus.Entrance{Name: name, Up: true}
}

// oneLine returns text as one line of valid UTF-8 with at most maxSelfMessage bytes.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if len(text) > maxSelfMessage {
		text = strings.ToValidUTF8(text[:maxSelfMessage-len("...")], "") + "..."
	}
	return text
}

// podFinder reports whether a sandbox's pod is still there. One that cannot be read is.
type podFinder interface {
	exists(ctx context.Context, s podnet.Sandbox) bool
}

// podReader is the podFinder that asks the agent's cache.
type podReader struct{ controllers.Reader }

func (p podReader) exists(ctx context.Context, s podnet.Sandbox) bool {
	_, err := p.Pod(ctx, s)
	return !errors.Is(err, podnet.ErrNoPod)
}

// outcomes passes reports of pods on, and remembers the newest failure, and which pods asked for rules and got none: the ledger has no entry
// of those.
type outcomes struct {
	controllers.Reporter
	mu      sync.Mutex
	last    *agentstatus.Error
	skipped map[string]podnet.Sandbox // by UID
}

func newOutcomes(to controllers.Reporter) *outcomes {
	return &outcomes{Reporter: to, skipped: map[string]podnet.Sandbox{}}
}

// Report passes a report on.
func (o *outcomes) Report(r controllers.Report) {
	o.note(r)
	o.Reporter.Report(r)
}

func (o *outcomes) note(r controllers.Report) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.Reason == controllers.ReasonNotRequired && r.Event {
		o.skipped[r.Sandbox.UID] = podnet.Sandbox{Namespace: r.Sandbox.Namespace, Name: r.Sandbox.Name, UID: r.Sandbox.UID}
	} else {
		delete(o.skipped, r.Sandbox.UID)
	}
	if r.Status == controllers.StatusFailed {
		o.last = &agentstatus.Error{Pod: r.Sandbox.Pod(), Message: oneLine(r.Message), Time: time.Now().UTC().Truncate(time.Second)}
	}
}

// Forget drops a pod that is gone.
func (o *outcomes) Forget(podUID string) {
	o.mu.Lock()
	delete(o.skipped, podUID)
	o.mu.Unlock()
	o.Reporter.Forget(podUID)
}

// lastError returns the newest failure, or nil.
func (o *outcomes) lastError() *agentstatus.Error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last
}

// skippedPods returns how many pods asked and got no rules. It drops those that are gone: nothing else reports the end of a pod that is not in
// the ledger.
func (o *outcomes) skippedPods(ctx context.Context, pods podFinder) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	for uid, s := range o.skipped {
		if !pods.exists(ctx, s) {
			delete(o.skipped, uid)
		}
	}
	return len(o.skipped)
}
