package node

import (
	"context"
	"errors"
	"strings"
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
	r.changed = func(podnet.Sandbox) { done = append(done, "told") }
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
		{"Istio's again", func() error { return report(sidecars.Status{Labels: true, Ready: true}) }, []string{set}},
		{"an agent that starts", func() error { r.reports = map[string]sidecarReport{}; return report(sidecars.Status{Labels: true}) }, []string{"told"}},
		{"the profile is no longer Istio's", func() error { return report(sidecars.Status{Ready: true, Epoch: 1}) }, []string{unset, "told"}},
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

// An agent that starts knows by the proxy's facts that its predecessor has set the label. They go with the proxy.
func TestLabel_optOutAfterRestart_isTakenAway(t *testing.T) {
	unset := 0
	api := interceptor.NewClient(sidecarAPI(t).(client.WithWatch), interceptor.Funcs{
		SubResourcePatch: func(_ context.Context, _ client.Client, _ string, o client.Object, patch client.Patch, _ ...client.SubResourcePatchOption) error {
			if text, err := patch.Data(o); err != nil || strings.Contains(string(text), "null") {
				unset++
			}
			return nil
		},
	})
	r := newSidecarReports(api, nil, "node-1")
	r.Report(theSandbox(), sidecars.Status{Profile: "istio", State: v1alpha1.Running, Labels: true})
	r.Report(theSandbox(), sidecars.Status{Profile: "istio", State: v1alpha1.Ended})
	r.Retract("u1")
	if err := workOne(t, r); err != nil || unset != 1 {
		t.Errorf("taken away %d times, error %v", unset, err)
	}
}

// A label that the API server refuses is said on the ManagedProxy until it is set.
func TestLabel_refused_isSaid(t *testing.T) {
	var fails error
	api := sidecarAPI(t).(client.WithWatch)
	r := newSidecarReports(interceptor.NewClient(api, interceptor.Funcs{
		SubResourcePatch: func(context.Context, client.Client, string, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
			return fails
		},
	}), nil, "node-1")
	for err, want := range map[error]string{errors.New("denied"): "patch label security.istio.io/tlsMode of pod: denied", nil: ""} {
		fails = err
		r.Report(theSandbox(), sidecars.Status{Profile: "istio", State: v1alpha1.Running, Labels: true, Ready: true, Image: "i" + want})
		_ = workOne(t, r)
		var found v1alpha1.ManagedProxy
		if err := api.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "cart"}, &found); err != nil || found.Status.Message != want {
			t.Errorf("it says %q, error %v; want %q", found.Status.Message, err, want)
		}
		r.reports["u1"] = sidecarReport{}
	}
}

// workOne does what is queued, once.
func workOne(t *testing.T, r *sidecarReports) error {
	t.Helper()
	uid, _ := r.queue.Get()
	defer r.queue.Done(uid)
	return r.work(t.Context(), uid)
}
