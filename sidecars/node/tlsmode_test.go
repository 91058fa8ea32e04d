package node

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/sidecars"
)

// A pod gets the label once, before it is ready, and loses it with its proxy.
func TestLabel_istiosProxy_isSetOnceAndTakenAway(t *testing.T) {
	var done []string
	var fails error
	api := interceptor.NewClient(sidecarAPI(t).(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(_ context.Context, _ client.Client, sub string, o client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
			text, err := patch.Data(o)
			done = append(done, sub+" "+o.GetNamespace()+"/"+o.GetName()+" "+string(text))
			return errors.Join(err, fails)
		},
	})
	r := newSidecarReports(api, nil, "node-1")
	r.changed = func(context.Context, podnet.Sandbox) { done = append(done, "told") }
	report := func(s sidecars.Status) error {
		s.Profile, s.State = "istio", v1alpha1.Running
		r.Report(theSandbox(), s)
		return workOne(t, r)
	}
	const set = `status shop/cart {"metadata":{"labels":{"security.istio.io/tlsMode":"istio"},"uid":"u1"}}`
	const unset = `status shop/cart {"metadata":{"labels":{"security.istio.io/tlsMode":null},"uid":"u1"}}`
	for _, step := range []struct {
		what string
		do   func() error
		want []string
	}{
		{"it starts", func() error { return report(sidecars.Status{Labels: true}) }, []string{"told"}},
		{"it is ready", func() error { return report(sidecars.Status{Labels: true, Ready: true}) }, []string{set, "told"}},
		{"it misses questions", func() error { return report(sidecars.Status{Labels: true}) }, []string{"told"}},
		{"it is ready again", func() error { return report(sidecars.Status{Labels: true, Ready: true, Epoch: 1}) }, []string{"told"}},
		{"the pod has no proxy any more", func() error { r.Retract("u1"); return workOne(t, r) }, []string{unset}},
		{"another proxy", func() error { return report(sidecars.Status{Ready: true}) }, []string{"told"}},
	} {
		done = nil
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.what, err)
		}
		if diff := cmp.Diff(step.want, done); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
	}
	// A label that cannot be set is tried again, and keeps no pod from being ready.
	done, fails = nil, errors.New("denied")
	if err := report(sidecars.Status{Labels: true, Ready: true, Epoch: 2}); err == nil {
		t.Error("a label that was denied is no error")
	}
	fails = nil
	r.queue.Add("u1")
	if err := workOne(t, r); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{set, set}, done); diff != "" {
		t.Errorf("denied once (-want +got):\n%s", diff)
	}
}

// workOne does what is queued, once.
func workOne(t *testing.T, r *sidecarReports) error {
	t.Helper()
	uid, _ := r.queue.Get()
	defer r.queue.Done(uid)
	return r.work(t.Context(), uid)
}
