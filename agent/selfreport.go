package agent

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/agentstatus"
)

// addSelfReport makes what writes the agent's status if the agent knows its pod. It returns what is to get the reports of pods.
func (a *agent) addSelfReport(mgr manager.Manager, to controllers.Reporter) (controllers.Reporter, error) {
	if a.PodName == "" {
		return to, nil
	}
	seen := &outcomes{Reporter: to}
	var err error
	a.selfReport, err = a.newSelfReport(mgr, seen, ctrl.Log)
	return seen, err
}

// newSelfReport returns what writes the agent's status on its pod.
func (a *agent) newSelfReport(mgr manager.Manager, seen *outcomes, log logr.Logger) (*agentstatus.Report, error) {
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
	return &agentstatus.Report{
		Look: func(ctx context.Context) agentstatus.Status { return a.status(ctx, seen) },
		Write: func(ctx context.Context, s agentstatus.Status) error {
			writes.Inc()
			return write(ctx, s)
		},
		Log: log,
	}, nil
}
