package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/jitter"
)

const (
	// selfLookEvery is the time between two looks at what the agent would write about itself.
	selfLookEvery = 5 * time.Second
	// selfPause is the least time between two writes, except when readiness or an entrance changes: pods that fail in turn are one last error
	// after the other.
	selfPause = time.Minute
	// selfWriteTimeout bounds one write.
	selfWriteTimeout = 10 * time.Second
	// selfQPS and selfBurst limit the writes by a limiter of their own, so that none takes the turn of a pod's report.
	selfQPS, selfBurst = 1, 2
)

// selfReport writes the agent's status on its own pod. Nothing reads it back.
//
//   - Every selfLookEvery it looks at the agent;
//   - a change is written, at once if it concerns readiness or an entrance, else at most every selfPause;
//   - while nothing changes, nothing is written: the kubelet's readiness says that the agent hangs;
//   - a write that fails is tried again with back-off, with what holds by then.
type selfReport struct {
	look  func(context.Context) agentstatus.Status
	write func(context.Context, agentstatus.Status) error
	log   logr.Logger
}

// Start writes until ctx ends.
func (s selfReport) Start(ctx context.Context) {
	var last agentstatus.Status // the last that was written
	failures := 0
	for {
		wait := selfLookEvery
		if now := s.look(ctx); selfDue(last, now) {
			switch err := s.writeBounded(ctx, now); {
			case err == nil:
				last, failures = now, 0
			case ctx.Err() == nil:
				if failures++; failures == 1 {
					s.log.Info("own status not written", "reason", err.Error())
				}
				wait = jitter.Full(min(firstAttemptWait<<min(failures, 10), lastAttemptWait))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func (s selfReport) writeBounded(ctx context.Context, now agentstatus.Status) error {
	ctx, cancel := context.WithTimeout(ctx, selfWriteTimeout)
	defer cancel()
	return s.write(ctx, now)
}

// selfDue reports whether now is written, given what was written last.
func selfDue(last, now agentstatus.Status) bool {
	age := now.Time.Sub(last.Time)
	switch {
	case last.Time.IsZero() || age < 0: // a clock that was set back
		return true
	case now.Ready != last.Ready || !sameEntrances(now.Entrance, last.Entrance):
		return true
	case age < selfPause:
		return false
	}
	return withoutTimes(now).String() != withoutTimes(last).String()
}

// sameEntrances compares which entrances are up, and no messages.
func sameEntrances(a, b []agentstatus.Entrance) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || a[i].Up != b[i].Up {
			return false
		}
	}
	return true
}

// withoutTimes returns the status without times: a failure that comes again is no change.
func withoutTimes(s agentstatus.Status) agentstatus.Status {
	s.Time = time.Time{}
	if s.LastError != nil {
		s.LastError = &agentstatus.Error{Pod: s.LastError.Pod, Message: s.LastError.Message}
	}
	return s
}

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
func (a *agent) newSelfReport(mgr manager.Manager, seen *outcomes, log logr.Logger) (*selfReport, error) {
	writes := prometheus.NewCounter(prometheus.CounterOpts{
		Name: controllers.MetricPrefix + "own_status_writes_total", Help: "Requests by which the agent wrote its status on its own pod.",
	})
	if err := a.metrics.Register(writes); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	config := rest.CopyConfig(mgr.GetConfig())
	config.RateLimiter, config.QPS, config.Burst = nil, selfQPS, selfBurst
	c, err := client.New(config, client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("make client of the agent's status: %w", err)
	}
	return &selfReport{
		look: func(ctx context.Context) agentstatus.Status { return a.status(ctx, seen) },
		write: func(ctx context.Context, s agentstatus.Status) error {
			writes.Inc()
			return writeOwnStatus(ctx, c, types.NamespacedName{Namespace: a.Intent.AgentNamespace, Name: a.PodName}, s)
		},
		log: log,
	}, nil
}

// writeOwnStatus patches one annotation, through pods/status, to which the agent has a right already.
func writeOwnStatus(ctx context.Context, c client.StatusClient, own types.NamespacedName, s agentstatus.Status) error {
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{agentstatus.Annotation: s.String()}}})
	if err != nil {
		return fmt.Errorf("encode own status: %w", err)
	}
	pod := &metav1.PartialObjectMetadata{ // the answer need not be the whole pod
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: own.Namespace, Name: own.Name},
	}
	if err := c.Status().Patch(ctx, pod, client.RawPatch(types.MergePatchType, data)); err != nil {
		return fmt.Errorf("patch status of own pod %s: %w", own, err)
	}
	return nil
}
