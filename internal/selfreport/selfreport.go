// Package selfreport writes what an agent says about itself on its own pod.
package selfreport

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"istio-pod-network-controller/internal/agentstatus"
	"istio-pod-network-controller/internal/jitter"
)

const (
	// lookEvery is the time between two looks at what the agent would write about itself.
	lookEvery = 5 * time.Second
	// pause is the least time between two writes, except when readiness or a hook changes: pods that fail in turn are one last error
	// after the other.
	pause = time.Minute
	// writeTimeout bounds one write.
	writeTimeout = 10 * time.Second
	// qps and burst limit the writes by a limiter of their own, so that none takes the turn of a pod's report.
	qps, burst = 1, 2
)

// Report writes an agent's status on its own pod. Nothing reads it back.
//
//   - Every lookEvery it looks at the agent;
//   - a change is written, at once if it concerns readiness or a hook, else at most every pause;
//   - while nothing changes, nothing is written: the kubelet's readiness says that the agent hangs;
//   - a write that fails is tried again with back-off, with what holds by then.
type Report struct {
	// Look returns what is to be written, with the time of the look.
	Look  func(context.Context) agentstatus.Status
	Write func(context.Context, agentstatus.Status) error
	Log   logr.Logger
}

// Start writes until ctx ends.
func (r Report) Start(ctx context.Context) {
	var last agentstatus.Status // the last that was written
	failures := 0
	for {
		wait := lookEvery
		if now := r.Look(ctx); due(last, now) {
			switch err := r.writeBounded(ctx, now); {
			case err == nil:
				last, failures = now, 0
			case ctx.Err() == nil:
				if failures++; failures == 1 {
					r.Log.Info("own status not written", "reason", err.Error())
				}
				wait = jitter.Full(jitter.Bound(failures))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func (r Report) writeBounded(ctx context.Context, now agentstatus.Status) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return r.Write(ctx, now)
}

// due reports whether now is written, given what was written last.
func due(last, now agentstatus.Status) bool {
	age := now.Time.Sub(last.Time)
	switch {
	case last.Time.IsZero() || age < 0: // a clock that was set back
		return true
	case now.Ready != last.Ready || !sameHooks(now.Hook, last.Hook):
		return true
	case age < pause:
		return false
	}
	return withoutTimes(now).String() != withoutTimes(last).String()
}

// sameHooks compares which hooks are up, and no messages.
func sameHooks(a, b []agentstatus.Hook) bool {
	return slices.EqualFunc(a, b, func(a, b agentstatus.Hook) bool { return a.Name == b.Name && a.Up == b.Up })
}

// withoutTimes returns the status without times: a failure that comes again is no change.
func withoutTimes(s agentstatus.Status) agentstatus.Status {
	s.Time = time.Time{}
	if s.LastError != nil {
		s.LastError = &agentstatus.Error{Pod: s.LastError.Pod, Message: s.LastError.Message}
	}
	return s
}

// NewWrite returns what writes a status on the agent's own pod. Its client has a limiter of its own.
func NewWrite(mgr cluster.Cluster, own types.NamespacedName) (func(context.Context, agentstatus.Status) error, error) {
	config := rest.CopyConfig(mgr.GetConfig())
	config.RateLimiter, config.QPS, config.Burst = nil, qps, burst
	c, err := client.New(config, client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("make client of the agent's status: %w", err)
	}
	return func(ctx context.Context, s agentstatus.Status) error { return write(ctx, c, own, s) }, nil
}

// write patches one annotation, through pods/status, to which the agent has a right already.
func write(ctx context.Context, c client.StatusClient, own types.NamespacedName, s agentstatus.Status) error {
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
