package agent

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"istio-pod-network-controller/controllers"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/runtime/cni/install"
)

// fakeNamespace is a backend with one network namespace.
type fakeNamespace struct {
	rules      bool  // something of ours is there
	errApply   error // of Apply
	errPresent error // of Present
	applied    int
}

func (n *fakeNamespace) Apply(context.Context, podnet.Place, iptables.Ruleset) (out iptables.Outcome, err error) {
	n.applied++
	if n.errApply != nil {
		return out, n.errApply
	}
	if !n.rules {
		n.rules, out.Drift = true, iptables.Drift{{Kind: iptables.KindAbsent}}
	}
	return out, nil
}

func (n *fakeNamespace) Present(context.Context, podnet.Place) (bool, error) {
	return n.rules, n.errPresent
}

func (n *fakeNamespace) Remove(context.Context, podnet.Place) (removed bool, err error) {
	return false, n.errApply
}

// Identify finds the one namespace.
func (*fakeNamespace) Identify(string) (podnet.Identity, error) { return podnet.Identity{Ino: 1}, nil }

type noReports struct{}

func (noReports) Report(controllers.Report) {}
func (noReports) Forget(string)             {}

func (noReports) Event(podnet.Sandbox, string, string) {}

// newTestCNIHook returns a hook that knows one pod with the given initialize annotation. If api is set, every read fails with it.
func newTestCNIHook(t *testing.T, n *fakeNamespace, initialize string, api error) cniHook {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "u-1", Annotations: map[string]string{}}}
	if initialize != "" {
		pod.Annotations[intent.KeyInitialize] = initialize
	}
	c := fake.NewClientBuilder().WithObjects(pod, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}).
		WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if api != nil {
				return api
			}
			return c.Get(ctx, key, o, opts...)
		}}).Build()
	pods, ledger := controllers.Reader{Cache: c, Live: c}, controllers.NewLedger()
	counters, err := controllers.NewMetrics(prometheus.NewRegistry(), ledger)
	if err != nil {
		t.Fatal(err)
	}
	d := newCoreHolder()
	d.set(core{pods: pods, programmer: &controllers.Programmer{
		Config: intent.Config{Select: intent.SelectAnnotation, Defaults: intent.StandardDefaults()}, Backend: n, BackendName: "fake", Namespaces: n,
		Pods: pods, Reporter: noReports{}, Ledger: ledger, Metrics: counters,
	}})
	return cniHookOf(ensurer{by: controllers.CNI, core: d})
}

func cniHookOf(e ensurer) cniHook {
	return cniHook{ensurer: e, calls: &install.Calls{}, letThrough: failOpenMetric(controllers.CNI), requests: cniRequests()}
}

// A pod that starts while the agent does waits for it, and is not refused.
func TestAdd_podsAreReadMeanwhile_passes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &fakeNamespace{}
		c := newTestCNIHook(t, n, "true", nil)
		read, err := c.core.get()
		if err != nil {
			t.Fatal(err)
		}
		c.core = newCoreHolder()
		s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u-1", ID: "8f5e", NetNS: "/run/netns/x"}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		time.AfterFunc(3*time.Second, func() { c.core.set(read) })
		if err := c.Add(ctx, s); err != nil || n.applied != 1 {
			t.Errorf("%v, wrote %d times", err, n.applied)
		}
		c.core = newCoreHolder()
		began := time.Now()
		ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := c.Add(ctx, s); !errors.Is(err, podnet.ErrPodsUnknown) || time.Since(began) != 4*time.Second {
			t.Errorf("the pods are never read: %v after %s", err, time.Since(began))
		}
		began = time.Now()
		if err := c.Check(t.Context(), s); err != nil || time.Since(began) > 0 { // of each sandbox, one after the other
			t.Errorf("CHECK: %v after %s", err, time.Since(began))
		}
	})
}

func TestAdd_rulesApplied_logsPodAndHook(t *testing.T) {
	var logged []string
	log := funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{})
	c := newTestCNIHook(t, &fakeNamespace{}, "true", nil)
	s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u-1", ID: "8f5e", NetNS: "/run/netns/x"}
	if err := c.Add(logr.NewContext(t.Context(), log), s); err != nil {
		t.Fatal(err)
	}
	if want := `"hook"="cni" "pod"="shop/cart" "podUID"="u-1"`; len(logged) != 1 || !strings.Contains(logged[0], want) {
		t.Errorf("logged %q, want one line with %s", logged, want)
	}
}

// Each pod would start 4 s later for nothing.
func TestAdd_failOpen_doesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cniHookOf(ensurer{by: controllers.CNI, core: newCoreHolder(), failOpen: true})
		began := time.Now()
		if err := c.Add(t.Context(), podnet.Sandbox{}); err != nil || time.Since(began) > 0 {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// Pods that end must not queue behind pods that wait.
func TestAdd_manyWait_leaveRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cniHookOf(ensurer{by: controllers.CNI, core: newCoreHolder()})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var refused atomic.Int64
		for range 10 * maxAwaiting {
			go func() {
				if err := c.Add(ctx, podnet.Sandbox{}); errors.Is(err, podnet.ErrPodsUnknown) {
					refused.Add(1)
				}
			}()
		}
		synctest.Wait()
		if n := refused.Load(); n != 9*maxAwaiting {
			t.Errorf("%d are refused at once, so %d wait", n, 10*maxAwaiting-n)
		}
		<-ctx.Done()
		synctest.Wait()
		if n := refused.Load(); n != 10*maxAwaiting || c.core.awaiting.Load() != 0 {
			t.Errorf("%d are refused in the end, %d still wait", n, c.core.awaiting.Load())
		}
	})
}

var errSome = errors.New("some error")

// CRI-O asks after every ADD, and at its start for every sandbox of the node. A CHECK that fails costs the pod its address.
func TestCheckFailsOnlyWhereRulesAreMissing(t *testing.T) {
	for name, tc := range map[string]struct {
		namespace  fakeNamespace
		initialize string
		api        error
		noUID      bool
		wantErr    bool
	}{
		"rules are there":                                       {namespace: fakeNamespace{rules: true}, initialize: "true"},
		"rules were missing and are there now":                  {initialize: "true"},
		"the runtime does not pass the UID":                     {initialize: "true", noUID: true},
		"rules are missing and cannot be applied":               {namespace: fakeNamespace{errApply: errSome}, initialize: "true", wantErr: true},
		"the same without the UID":                              {namespace: fakeNamespace{errApply: errSome}, initialize: "true", noUID: true, wantErr: true},
		"rules cannot be compared and some are there":           {namespace: fakeNamespace{rules: true, errApply: errSome}, initialize: "true"},
		"the namespace cannot be read":                          {namespace: fakeNamespace{errApply: errSome, errPresent: errSome}, initialize: "true"},
		"a wrong annotation, and earlier rules are kept":        {namespace: fakeNamespace{rules: true}, initialize: "yes"},
		"a wrong annotation, and no rules":                      {initialize: "yes", wantErr: true},
		"a pod that never asked":                                {},
		"the API server is away":                                {initialize: "true", api: errSome},
		"the API server is away, and there is no UID":           {initialize: "true", api: errSome, noUID: true},
		"the API server is away, for a pod that never asked":    {api: errSome},
		"a wrong annotation cannot be read, with rules missing": {initialize: "yes", api: errSome},
	} {
		t.Run(name, func(t *testing.T) {
			s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u-1", ID: "8f5e", NetNS: "/run/netns/x"}
			if tc.noUID {
				s.UID = ""
			}
			err := newTestCNIHook(t, &tc.namespace, tc.initialize, tc.api).Check(t.Context(), s)
			if (err != nil) != tc.wantErr {
				t.Errorf("got %v, want an error: %t", err, tc.wantErr)
			}
		})
	}
}

// A request of the plugin is followed only if the API server knows the pod by the same name and UID.
func TestAddWritesForThePodOfTheAPIServerOnly(t *testing.T) {
	good := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u-1", ID: "8f5e", NetNS: "/run/netns/x"}
	for name, tc := range map[string]struct {
		change    func(*podnet.Sandbox)
		wantWrote int
	}{
		"as it is":                {func(*podnet.Sandbox) {}, 1},
		"another pod's UID":       {func(s *podnet.Sandbox) { s.UID = "u-2" }, 0},
		"another pod's name":      {func(s *podnet.Sandbox) { s.Name = "other" }, 0},
		"a name without a UID":    {func(s *podnet.Sandbox) { s.UID = "" }, 1},
		"another namespace":       {func(s *podnet.Sandbox) { s.Namespace = "other" }, 0},
		"an unknown name, no UID": {func(s *podnet.Sandbox) { s.Name, s.UID = "other", "" }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			n, s := &fakeNamespace{}, good
			tc.change(&s)
			if err := newTestCNIHook(t, n, "true", nil).Add(t.Context(), s); err != nil || n.applied != tc.wantWrote {
				t.Errorf("%v, wrote %d times, want %d", err, n.applied, tc.wantWrote)
			}
		})
	}
}

// If one read fails and the next one succeeds, CHECK must still pass for a pod that does not ask for rules.
func TestCheckKnowsWhatThePodAsksFor(t *testing.T) {
	c := newTestCNIHook(t, &fakeNamespace{}, "", nil)
	core, err := c.core.get()
	if err != nil {
		t.Fatal(err)
	}
	core.programmer.Pods = &flakyPods{Pods: core.programmer.Pods}
	s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u-1", ID: "8f5e", NetNS: "/run/netns/x"}
	if err := c.Check(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// Who chooses a profile asks for rules, too.
func TestCheck_podOfAManagedProxy_rulesMissing_fails(t *testing.T) {
	c := newTestCNIHook(t, &fakeNamespace{errApply: errSome}, "", nil)
	core, err := c.core.get()
	if err != nil {
		t.Fatal(err)
	}
	core.programmer.Pods, core.programmer.Proxies = chosen{core.programmer.Pods}, oneProxy{}
	s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u-1", ID: "8f5e", NetNS: "/run/netns/x"}
	if err := c.Check(t.Context(), s); !errors.Is(err, errSome) {
		t.Error(err)
	}
}

// chosen has each pod choose a profile.
type chosen struct{ controllers.Pods }

func (c chosen) Pod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	pod, err := c.Pods.Pod(ctx, s)
	if err == nil {
		pod.Annotations = map[string]string{intent.KeySidecar: "edge"}
	}
	return pod, err
}

// oneProxy is a proxy for each pod.
type oneProxy struct{ controllers.Proxies }

func (oneProxy) Managed(context.Context, podnet.Sandbox, string, *corev1.Pod, *corev1.Namespace) *intent.ManagedProxy {
	return &intent.ManagedProxy{Profile: "edge", Owner: intent.Owner{UID: 1337, GID: 1337}, OutboundPort: 15001, InboundPort: 15006}
}

func (oneProxy) Ready(podnet.Sandbox) (ready, known bool) { return true, true }

func (oneProxy) Follow(podnet.Sandbox, controllers.Hook, string) {}

// flakyPods fails once.
type flakyPods struct {
	controllers.Pods
	asked bool
}

func (f *flakyPods) Pod(ctx context.Context, s podnet.Sandbox) (*corev1.Pod, error) {
	if !f.asked {
		f.asked = true
		return nil, errSome
	}
	return f.Pods.Pod(ctx, s)
}

// cri-dockerd passes /proc/PID/ns/net, which an agent without the node's processes cannot open, and no UID.
func TestAdd_pathOfAProcess_isAskedOfTheRuntime(t *testing.T) {
	n := &fakeNamespace{}
	c := newTestCNIHook(t, n, "true", nil)
	core, err := c.core.get()
	if err != nil {
		t.Fatal(err)
	}
	core.programmer.Finder = fakeEngine{}
	core.programmer.Announcers = controllers.Announcers{func() bool { return true }}
	s := podnet.Sandbox{Namespace: "shop", Name: "cart", ID: "8f5e", NetNS: "/proc/4711/ns/net"}
	if err := c.Add(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if known, _ := core.programmer.Ledger.Of("u-1"); n.applied != 1 || known.Sandbox.NetNS != "/run/docker/netns/x" {
		t.Errorf("wrote %d times, in %q", n.applied, known.Sandbox.NetNS)
	}
}

// fakeEngine knows one sandbox.
type fakeEngine struct{}

// Find finds it.
func (fakeEngine) Find(_ context.Context, pod podnet.Sandbox) (podnet.Sandbox, error) {
	pod.ID, pod.NetNS = "8f5e", "/run/docker/netns/x"
	return pod, nil
}
