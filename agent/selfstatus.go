package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/agentstatus"
)

// Bounds of what the agent writes about itself: the annotations of a pod may have 256 KiB in all.
const (
	maxSelfMessage = 300
	maxSelfFaults  = 10
)

// newSelfReport returns what writes the agent's status on its own pod; nil for an agent that does not know its pod. The status has the newest failure
// that w meets.
func (a *agent) newSelfReport(mgr manager.Manager, w *controllers.Writer) (*agentstatus.Report, error) {
	if a.PodName == "" {
		return nil, nil //nolint:nilnil // an agent need not know its pod
	}
	writes := prometheus.NewCounter(prometheus.CounterOpts{
		Name: controllers.MetricPrefix + "own_status_writes_total", Help: "Requests by which the agent wrote its status on its own pod.",
	})
	if err := a.metrics.Register(writes); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	write, err := agentstatus.NewWrite(mgr, types.NamespacedName{Namespace: a.Intent.AgentNamespace, Name: a.PodName})
	if err != nil {
		return nil, err
	}
	var newest atomic.Pointer[agentstatus.Error]
	w.Failed = func(r controllers.Report) {
		newest.Store(&agentstatus.Error{Pod: r.Sandbox.Pod(), Message: oneLine(r.Message), Time: time.Now().UTC().Truncate(time.Second)})
	}
	return &agentstatus.Report{
		Look: func(ctx context.Context) agentstatus.Status { return a.status(ctx, newest.Load()) },
		Write: func(ctx context.Context, s agentstatus.Status) error {
			writes.Inc()
			return write(ctx, s)
		},
		Log: ctrl.Log,
	}, nil
}

// status returns what the agent writes about itself.
func (a *agent) status(ctx context.Context, newest *agentstatus.Error) agentstatus.Status {
	s := agentstatus.Status{
		Version: a.Build.Version, Revision: a.Build.Revision, Backend: a.backends.Name(), Entrance: a.entranceStates(ctx), LastError: newest,
		Inspect: a.inspect.Load(), Time: time.Now().UTC().Truncate(time.Second),
	}
	for _, err := range a.ready.failing(ctx) {
		if len(s.NotReady) < maxSelfFaults {
			s.NotReady = append(s.NotReady, oneLine(err.Error()))
		}
	}
	s.Ready = len(s.NotReady) == 0
	return s
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
