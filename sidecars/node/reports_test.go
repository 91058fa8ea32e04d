package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	goruntime "k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"istio-pod-network-controller/api/v1alpha1"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/printable"
	"istio-pod-network-controller/sidecars"
)

// sidecarAPI is an API server that knows the proxy manager's kinds.
func sidecarAPI(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := goruntime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.ManagedProxy{}, &v1alpha1.ProxyProfile{}).Build()
}

func theSandbox() podnet.Sandbox {
	return podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u1", ID: "s1"}
}

// workOff does what is queued.
func workOff(t *testing.T, r *sidecarReports) {
	t.Helper()
	for r.queue.Len() > 0 {
		uid, _ := r.queue.Get()
		if err := r.work(t.Context(), uid); err != nil {
			t.Error(err)
		}
		r.queue.Done(uid)
	}
}

func TestReports_status_isWritten(t *testing.T) {
	// The API server gives each object a UID, the stand-in does not.
	api := sidecarAPI(t, &v1alpha1.ManagedProxy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "o1"}})
	var events, changed []string
	r := newSidecarReports(api, func(_ podnet.Sandbox, reason, message string) { events = append(events, reason+": "+message) }, "node-1")
	r.changed = func(s podnet.Sandbox) { changed = append(changed, s.ID) }
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	said := sidecars.Status{Profile: "edge", State: v1alpha1.Running, Ready: true, Epoch: 2, Image: "a/b", Hash: "h", FailedHash: "f", Paused: true, LastUpgrade: at}
	r.Report(theSandbox(), said)
	r.Report(theSandbox(), said)
	workOff(t, r)
	var got v1alpha1.ManagedProxy
	key := client.ObjectKey{Namespace: "shop", Name: "cart"}
	if err := api.Get(t.Context(), key, &got); err != nil {
		t.Fatal(err)
	}
	taken := metav1.NewTime(at)
	want := v1alpha1.ManagedProxyStatus{State: v1alpha1.Running, Ready: true, Sandbox: "s1", Epoch: 2, Image: "a/b", ProfileHash: "h", FailedHash: "f", Paused: true, LastUpgrade: &taken}
	if diff := cmp.Diff(want, got.Status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(v1alpha1.ManagedProxySpec{Profile: "edge", Pod: "cart", PodUID: "u1", Node: "node-1"}, got.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if len(got.OwnerReferences) != 1 || got.OwnerReferences[0].UID != "u1" || got.Labels[v1alpha1.LabelNode] != "node-1" {
		t.Errorf("owners %v, labels %v", got.OwnerReferences, got.Labels)
	}
	if len(changed) != 1 || len(events) != 0 {
		t.Errorf("passed on %v, events %v", changed, events)
	}

	said.Ready, said.Failure, said.Message = false, "it has ended", strings.Repeat("x", 5000)
	r.Report(theSandbox(), said)
	workOff(t, r)
	if ready, known := r.Ready(theSandbox()); ready || !known || len(changed) != 2 {
		t.Errorf("ready %t, known %t, passed on %v", ready, known, changed)
	}
	if diff := cmp.Diff([]string{"ProxyFailed: it has ended"}, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if err := api.Get(t.Context(), key, &got); err != nil || len(got.Status.Message) != v1alpha1.MaxMessage {
		t.Errorf("the message has %d bytes, error %v", len(got.Status.Message), err)
	}

	r.Retract("u1")
	workOff(t, r)
	if err := api.Get(t.Context(), key, &got); !apierrors.IsNotFound(err) || len(r.reports) > 0 {
		t.Errorf("after it was retracted: %v, %d are remembered", err, len(r.reports))
	}
}

// shownSandbox is the sandbox that the ManagedProxy of the pod shows.
func shownSandbox(t *testing.T, api client.Client) string {
	t.Helper()
	var got v1alpha1.ManagedProxy
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "cart"}, &got); err != nil {
		t.Fatal(err)
	}
	return got.Status.Sandbox
}

// The proxy in a pod's next sandbox may be ready before the API server was told that it starts.
func TestReports_newSandboxSameStatus_isWritten(t *testing.T) {
	api := sidecarAPI(t)
	r := newSidecarReports(api, nil, "node-1")
	next, serving := theSandbox(), sidecars.Status{Profile: "edge", State: v1alpha1.Running, Ready: true}
	next.ID = "s2"
	r.Report(theSandbox(), serving)
	workOff(t, r)
	r.Report(next, sidecars.Status{Profile: "edge", State: v1alpha1.Starting})
	r.Report(next, serving)
	workOff(t, r)
	if got := shownSandbox(t, api); got != "s2" {
		t.Errorf("it shows the sandbox %s, want s2", got)
	}
}

// A pod that opts in again while its ManagedProxy is being deleted has one afterwards.
func TestReports_reportAfterRetract_isWritten(t *testing.T) {
	var r *sidecarReports
	serving := sidecars.Status{Profile: "edge", State: v1alpha1.Running, Ready: true}
	api := interceptor.NewClient(sidecarAPI(t).(client.WithWatch), interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, how ...client.DeleteOption) error {
			r.Report(theSandbox(), serving)
			return c.Delete(ctx, o)
		},
	})
	r = newSidecarReports(api, nil, "node-1")
	r.Report(theSandbox(), serving)
	workOff(t, r)
	report := r.reports["u1"]
	report.object = "o1" // the API server gives each object a UID, the stand-in does not
	r.reports["u1"] = report
	r.Retract("u1")
	workOff(t, r)
	if got := shownSandbox(t, api); got != "s1" {
		t.Errorf("it shows the sandbox %s, want s1", got)
	}
}

// A pod that has finished stays for days: its ManagedProxy says so, and nothing is remembered.
func TestReports_finalStatus_isForgotten(t *testing.T) {
	api := sidecarAPI(t)
	r := newSidecarReports(api, nil, "node-1")
	for _, state := range []v1alpha1.State{v1alpha1.Running, v1alpha1.Ended} {
		r.Report(theSandbox(), sidecars.Status{Profile: "edge", State: state, Final: state == v1alpha1.Ended})
		workOff(t, r)
	}
	var got v1alpha1.ManagedProxy
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "cart"}, &got); err != nil {
		t.Fatal(err)
	}
	if got.Status.State != v1alpha1.Ended || len(r.reports) > 0 {
		t.Errorf("state %s; %d are remembered", got.Status.State, len(r.reports))
	}
}

// A profile's name may be longer than a label's value. Its ManagedProxy is written all the same.
func TestReports_longProfileName_isNoLabel(t *testing.T) {
	api := sidecarAPI(t)
	r := newSidecarReports(api, nil, "node-1")
	r.Report(theSandbox(), sidecars.Status{Profile: strings.Repeat("p", 64), State: v1alpha1.Starting})
	workOff(t, r)
	var got v1alpha1.ManagedProxy
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "cart"}, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{v1alpha1.LabelNode: "node-1"}, got.Labels); diff != "" || len(got.Spec.Profile) != 64 {
		t.Errorf("labels (-want +got):\n%s\nspec %+v", diff, got.Spec)
	}
}

// The schema bounds the texts: what is too long would never be written.
func TestClip_longText_staysValid(t *testing.T) {
	for text, want := range map[string]string{"abc": "abc", "abcd": "abc", "ab\u00e9": "ab"} {
		if got := printable.Clip(text, 3); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// An API server that takes a request and does not answer holds up one report for a while, and not all for ever.
func TestReports_apiHangs_othersAreWritten(t *testing.T) {
	api := sidecarAPI(t)
	hangs := interceptor.NewClient(api.(client.WithWatch), interceptor.Funcs{
		Apply: func(ctx context.Context, _ client.WithWatch, _ goruntime.ApplyConfiguration, _ ...client.ApplyOption) error {
			<-ctx.Done()
			return ctx.Err()
		},
	})
	synctest.Test(t, func(t *testing.T) {
		r, began := newSidecarReports(hangs, nil, "node-1"), time.Now()
		r.Report(theSandbox(), sidecars.Status{Profile: "edge", State: v1alpha1.Running})
		if err := r.work(t.Context(), "u1"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > writeLimit {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		r.queue.ShutDown()
		synctest.Wait()
	})
}
