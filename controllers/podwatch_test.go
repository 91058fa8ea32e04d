package controllers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/internal/podreport"
)

func request() ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "cart"}}
}

func newWatch(t *testing.T, pods ...*corev1.Pod) (*PodWatch, *bench) {
	t.Helper()
	b := newBench(t)
	c := fake.NewClientBuilder()
	for _, p := range pods {
		c.WithObjects(p)
	}
	w := NewPodWatch(c.Build(), b.Programmer)
	t.Cleanup(w.queue.ShutDown)
	return w, b
}

func TestReconcileDecidesWhenToLookAgain(t *testing.T) {
	cases := map[string]struct {
		change      func(*bench)
		soon, retry bool
	}{
		"programmed":              {},
		"no sandbox yet":          {change: func(b *bench) { clear(b.finder.sandboxes) }, soon: true},
		"the namespace went away": {change: func(b *bench) { b.backend.err = podnet.ErrGone }, soon: true},
		"an error that may pass":  {change: func(b *bench) { b.backend.err = errors.New("no") }, retry: true},
		"a wrong annotation": {
			change: func(b *bench) { b.pods.pod.Annotations[intent.KeyInitialize] = "yes" },
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w, b := newWatch(t, askingPod())
			if c.change != nil {
				c.change(b)
			}
			result, err := w.Reconcile(t.Context(), request())
			if (result.RequeueAfter > 0) != c.soon || (err != nil) != c.retry {
				t.Errorf("result %+v, error %v", result, err)
			}
		})
	}
}

func TestADeletedPodIsForgotten(t *testing.T) {
	w, b := newWatch(t)
	b.ensure(t, Changed)
	b.pods.errNow = podnet.ErrNoPod
	if _, err := w.Reconcile(t.Context(), request()); err != nil {
		t.Fatal(err)
	}
	if n := len(b.Ledger.Entries()); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

// An early hook may have programmed a pod that the cache does not have yet.
func TestReconcile_cacheLacksAPodWithASandbox_asksTheServerOnce(t *testing.T) {
	for name, c := range map[string]struct {
		err               error
		forgotten, failed bool
	}{
		"it is there":            {},
		"it is gone":             {err: podnet.ErrNoPod, forgotten: true},
		"the API server is away": {err: errors.New("connection refused"), failed: true},
	} {
		t.Run(name, func(t *testing.T) {
			w, b := newWatch(t)
			proxies := &fakeProxies{}
			b.Proxies, b.VerifyInterval = proxies, 10*time.Second
			b.ensure(t, Changed)
			for _, s := range neighbours() {
				b.Ledger.Put(Entry{Sandbox: s})
			}
			b.pods.errNow = c.err
			result, err := w.Reconcile(t.Context(), request())
			if c.failed != (err != nil) || b.pods.asked.Load() != 1 {
				t.Errorf("error %v after %d questions", err, b.pods.asked.Load())
			}
			_, known := b.Ledger.Of("uid-1")
			if known == c.forgotten || (len(proxies.forgotten) > 0) != c.forgotten {
				t.Errorf("remembered %t, proxies forgotten %v", known, proxies.forgotten)
			}
			if checked := result.RequeueAfter > 0; checked != (c.err == nil) {
				t.Errorf("checked again: %t", checked)
			}
		})
	}
}

// The runtime lists no ready sandbox of a pod that ends, whose containers may run for a while.
func TestReconcile_endingPodWithoutReadySandbox_isCheckedAgain(t *testing.T) {
	ending := askingPod()
	ending.DeletionTimestamp, ending.Finalizers = new(metav1.Now()), []string{"test/test"}
	w, b := newWatch(t, ending)
	b.pods.pod, b.VerifyInterval = ending, 10*time.Second
	b.ensure(t, Changed)
	clear(b.finder.sandboxes)
	if got, err := w.Reconcile(t.Context(), request()); err != nil || got.RequeueAfter <= 0 || got.RequeueAfter > 12*time.Second {
		t.Errorf("result %+v, error %v", got, err)
	}
	b.Ledger.ForgetPod("uid-1")
	if got, err := w.Reconcile(t.Context(), request()); err != nil || got.RequeueAfter != 0 {
		t.Errorf("without rules: result %+v, error %v", got, err)
	}
}

// Only the API server's word that there is no such pod makes the agent forget it.
func TestAPodThatCannotBeReadIsNotForgotten(t *testing.T) {
	w, b := newWatch(t, askingPod())
	b.ensure(t, Changed)
	broken := interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
		return errors.New("no")
	}}
	w.Client = interceptor.NewClient(fake.NewClientBuilder().Build(), broken)
	if _, err := w.Reconcile(t.Context(), request()); err == nil || len(b.Ledger.Entries()) != 1 {
		t.Errorf("error %v, remembered %+v", err, b.Ledger.Entries())
	}
}

// The deletion of a pod and the creation of its successor may arrive as one change.
func TestAPredecessorIsForgotten(t *testing.T) {
	w, b := newWatch(t, askingPod())
	proxies := &fakeProxies{}
	b.Proxies = proxies
	for _, state := range []State{FailedPod, Removed, Programmed} {
		old := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "uid-0", ID: "sandbox-0"}
		b.Ledger.Put(Entry{Sandbox: old, State: state})
		if _, err := w.Reconcile(t.Context(), request()); err != nil {
			t.Fatal(err)
		}
		if _, ok := b.Ledger.Of("uid-0"); ok || !slices.Contains(b.reporter.forgotten, "uid-0") || !slices.Contains(proxies.forgotten, "uid-0") {
			t.Errorf("%s: remembered %+v, forgotten reports %v, proxies %v", state, b.Ledger.Entries(), b.reporter.forgotten, proxies.forgotten)
		}
	}
}

// An early hook may have programmed a successor while the cache shows its predecessor.
func TestReconcile_cacheHasThePredecessor_keepsTheSuccessor(t *testing.T) {
	for name, errNow := range map[string]error{"the API server knows it": nil, "the API server is away": errors.New("connection refused")} {
		t.Run(name, func(t *testing.T) {
			predecessor := askingPod()
			predecessor.UID = "uid-0"
			w, b := newWatch(t, predecessor)
			proxies := &fakeProxies{}
			b.Proxies = proxies
			b.ensure(t, Changed)
			b.pods.errNow = errNow
			if _, err := w.Reconcile(t.Context(), request()); err != nil {
				t.Error(err)
			}
			if _, ok := b.Ledger.Of("uid-1"); !ok || slices.Contains(proxies.forgotten, "uid-1") {
				t.Errorf("remembered %+v, forgotten proxies %v", b.Ledger.Entries(), proxies.forgotten)
			}
		})
	}
}

func TestWhichChangesOfAPodMatter(t *testing.T) {
	cases := map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"our own report": {change: func(p *corev1.Pod) {
			p.Annotations[podreport.KeyStatus], p.Annotations[podreport.KeyDetails], p.ResourceVersion = "initialized", "{}", "2"
			p.Status.Conditions = []corev1.PodCondition{{Type: podreport.Condition, Status: corev1.ConditionTrue}}
		}},
		"an annotation":           {change: func(p *corev1.Pod) { p.Annotations[intent.KeyInitialize] = "false" }, want: true},
		"a label":                 {change: func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }, want: true},
		"a new address":           {change: func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}} }, want: true},
		"a new container":         {change: func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{ContainerID: "x"}} }, want: true},
		"a container of the spec": {change: func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{{Name: "proxy"}} }, want: true},
		"as whom a container runs": {change: func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "istio-proxy", User: &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: 1}}}}
		}, want: true},
		"the sandbox's state": {change: func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers}}
		}, want: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before, after := askingPod(), askingPod()
			c.change(after)
			if got := relevantPods().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestANamespacesAnnotationConcernsItsPods(t *testing.T) {
	other := askingPod()
	other.Namespace, other.UID = "other", "uid-9"
	w, _ := newWatch(t, askingPod(), other)
	ns := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	if d := cmp.Diff([]ctrl.Request{request()}, w.podsOf(t.Context(), ns)); d != "" {
		t.Error(d)
	}
}

// The cache keeps annotations that are read; a change of one of them concerns the namespace's pods, and no other change does.
func TestAnnotationChanges_namespace_followsWhatPodsInherit(t *testing.T) {
	const ports = "traffic.sidecar.istio.io/excludeOutboundPorts"
	type with = map[string]string
	for name, c := range map[string]struct {
		before, after map[string]string
		want          bool
	}{
		"it asks":                           {after: with{intent.KeyInitialize: "true"}, want: true},
		"a default of its pods":             {before: with{ports: "80"}, after: with{ports: "81"}, want: true},
		"an empty value instead of none":    {after: with{ports: ""}, want: true},
		"none instead of an empty value":    {before: with{ports: ""}, want: true},
		"what is about one pod":             {after: with{"sidecar.istio.io/status": "{}"}},
		"what nobody reads":                 {before: with{ports: "80"}, after: with{ports: "80", "example.com/a": "b"}},
		"no annotation, but another object": {},
	} {
		t.Run(name, func(t *testing.T) {
			kept := func(annotations map[string]string) client.Object {
				out, err := stripNamespace(false)(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: annotations}})
				if err != nil {
					t.Fatal(err)
				}
				return out.(client.Object)
			}
			before, after := kept(c.before), kept(c.after)
			after.SetLabels(map[string]string{"a": "b"})
			if got := annotationChanges().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != c.want {
				t.Errorf("concerns pods: %t", got)
			}
		})
	}
}

// What the cache drops must not change what a pod is judged by.
func TestStrippedPodsAskForTheSame(t *testing.T) {
	id := int64(2000)
	pod := askingPod()
	pod.Annotations[corev1.LastAppliedConfigAnnotation] = "{}"
	pod.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsGroup: &id}
	pod.Spec.Containers = []corev1.Container{
		{Name: "app", Image: "app:1", Env: []corev1.EnvVar{{Name: "A", Value: "B"}}},
		{Name: intent.ProxyContainer, Args: []string{"proxy", "sidecar"}, SecurityContext: &corev1.SecurityContext{RunAsUser: &id}},
	}
	config := intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults()}
	want, err := intent.Of(pod, nil, config)
	if err != nil {
		t.Fatal(err)
	}
	stripped, err := stripPod(pod.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	got, err := intent.Of(stripped.(*corev1.Pod), nil, config)
	if err != nil || got.Spec.Hash() != want.Spec.Hash() || got.Redirect != want.Redirect {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	small := stripped.(*corev1.Pod)
	if len(small.ManagedFields) != 0 || small.Spec.Containers[0].Image != "" || small.Annotations[corev1.LastAppliedConfigAnnotation] != "" {
		t.Errorf("kept: %+v", small)
	}
}

// People search the log by the pair.
func TestALineOfAReconcileNamesThePodOnce(t *testing.T) {
	var lines []string
	logger := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	req := request()
	podLogger(logger)(&req).Info("a pod")
	podLogger(logger)(nil).Info("no pod")
	if len(lines) != 2 || strings.Count(lines[0], "cart") != 1 || !strings.Contains(lines[0], `"pod"="shop/cart"`) || !strings.Contains(lines[1], `"controller"="pods"`) {
		t.Errorf("%q", lines)
	}
}
