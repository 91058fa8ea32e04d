package agent

import (
	"context"
	"errors"
	"strings"
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

// outcomes passes reports of pods on, and remembers the newest failure.
type outcomes struct {
	controllers.Reporter
	last atomic.Pointer[agentstatus.Error]
}

// Report passes a report on.
func (o *outcomes) Report(r controllers.Report) {
	if r.Status == controllers.StatusFailed {
		o.last.Store(&agentstatus.Error{Pod: r.Sandbox.Pod(), Message: oneLine(r.Message), Time: time.Now().UTC().Truncate(time.Second)})
	}
	o.Reporter.Report(r)
}
