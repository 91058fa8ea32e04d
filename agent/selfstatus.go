package agent

import (
	"context"
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
	"istio-pod-network-controller/internal/selfreport"
)

// Bounds of what the agent writes about itself: the annotations of a pod may have 256 KiB in all.
const (
	maxSelfMessage = 300
	maxSelfFaults  = 10
)

// selfStatus is the agent's report about itself, on its own pod.
type selfStatus struct {
	build   Build
	backend string
	// podsFrom returns agentstatus.Status.PodsFrom.
	podsFrom func() string
	ready    *readiness
	hooks    []hook
	inspect  *atomic.Pointer[agentstatus.Inspect]
}

// newSelfReport returns what writes the status on the agent's own pod. The status has the newest failure that w meets.
func newSelfReport(mgr manager.Manager, own types.NamespacedName, r prometheus.Registerer, s selfStatus, w *controllers.Writer) (*selfreport.Report, error) {
	writes := prometheus.NewCounter(prometheus.CounterOpts{
		Name: controllers.MetricPrefix + "own_status_writes_total", Help: "Requests by which the agent wrote its status on its own pod.",
	})
	if err := r.Register(writes); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	write, err := selfreport.NewWrite(mgr, own)
	if err != nil {
		return nil, err
	}
	var newest atomic.Pointer[agentstatus.Error]
	w.Failed = func(r controllers.Report) { newest.Store(failureNow(r)) }
	return &selfreport.Report{
		Look: func(ctx context.Context) agentstatus.Status { return s.look(ctx, newest.Load()) },
		Write: func(ctx context.Context, s agentstatus.Status) error {
			writes.Inc()
			return write(ctx, s)
		},
		Log: ctrl.Log,
	}, nil
}

// failureNow returns what the status says of a pod's failure.
func failureNow(r controllers.Report) *agentstatus.Error {
	return &agentstatus.Error{Pod: r.Sandbox.Pod(), Message: oneLine(r.Message), Time: time.Now().UTC().Truncate(time.Second)}
}

// look returns the status of this moment.
func (s selfStatus) look(ctx context.Context, newest *agentstatus.Error) agentstatus.Status {
	out := agentstatus.Status{
		Version: s.build.Version, Revision: s.build.Revision, Backend: s.backend, PodsFrom: s.podsFrom(), LastError: newest, Inspect: s.inspect.Load(), Time: time.Now().UTC().Truncate(time.Second),
	}
	for _, h := range s.hooks {
		out.Hook = append(out.Hook, hookState(string(h.by), h.state(ctx)))
	}
	for _, err := range s.ready.failing(ctx) {
		if len(out.NotReady) < maxSelfFaults {
			out.NotReady = append(out.NotReady, oneLine(err.Error()))
		}
	}
	out.Ready = len(out.NotReady) == 0
	return out
}

func hookState(name string, err error) agentstatus.Hook {
	if err != nil {
		return agentstatus.Hook{Name: name, Message: oneLine(err.Error())}
	}
	return agentstatus.Hook{Name: name, Up: true}
}

// oneLine returns text as one line of valid UTF-8 with at most maxSelfMessage bytes.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if len(text) > maxSelfMessage {
		text = strings.ToValidUTF8(text[:maxSelfMessage-len("...")], "") + "..."
	}
	return text
}
