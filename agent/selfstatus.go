package agent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/agentstatus"
)

// Bounds of what the agent writes about itself: the annotations of a pod may have 256 KiB in all.
const (
	maxSelfMessage = 300
	maxSelfFaults  = 10
)

// status returns what the agent writes about itself.
func (a *agent) status(ctx context.Context, seen *outcomes) agentstatus.Status {
	s := agentstatus.Status{
		Version: a.Build.Version, Revision: a.Build.Revision, Backend: a.backends.Name(),
		NotReady: a.faults(ctx), Entrance: a.entranceStates(ctx), LastError: seen.last.Load(),
		Time: time.Now().UTC().Truncate(time.Second),
	}
	s.Ready = len(s.NotReady) == 0
	s.Inspect = a.inspect.Load()
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

// entranceStates returns the entrances that are switched on. An early one that the runtime does not offer is down although the agent is ready. The
// watch stays up without the API server: nobody could read it there, and all agents would write when it is back.
func (a *agent) entranceStates(ctx context.Context) []agentstatus.Entrance {
	out := []agentstatus.Entrance{entranceState(string(controllers.Watch), a.core.check(ctx))}
	if n := a.nriEntrance; n != nil {
		err := a.nriServed(ctx)
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

// maxOutcomes bounds the failures that are remembered: more than the pods of a node.
const maxOutcomes = 1000

// outcomes passes reports of pods on, and remembers the newest failure. A failure that a pod repeats is not newer: pods that fail for good would
// take turns as the last error.
type outcomes struct {
	controllers.Reporter
	last atomic.Pointer[agentstatus.Error]

	mu       sync.Mutex
	failures map[string]string // by pod UID
}

// Report passes a report on.
func (o *outcomes) Report(r controllers.Report) {
	message := oneLine(r.Message)
	switch {
	case r.Status != controllers.StatusFailed:
		o.drop(r.Sandbox.UID)
	case o.isNew(r.Sandbox.UID, message):
		o.last.Store(&agentstatus.Error{Pod: r.Sandbox.Pod(), Message: message, Time: time.Now().UTC().Truncate(time.Second)})
	}
	o.Reporter.Report(r)
}

// Forget passes on that a pod is gone.
func (o *outcomes) Forget(uid string) {
	o.drop(uid)
	o.Reporter.Forget(uid)
}

// isNew remembers a pod's failure, and reports whether its last one was another.
func (o *outcomes) isNew(uid, message string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if before, failed := o.failures[uid]; failed && before == message {
		return false
	}
	if o.failures == nil || len(o.failures) >= maxOutcomes {
		o.failures = map[string]string{}
	}
	o.failures[uid] = message
	return true
}

func (o *outcomes) drop(uid string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.failures, uid)
}
