package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/runtime/cni"
	"istio-pod-network-controller/runtime/nri"
)

// filledCache is a cache whose WaitForCacheSync returns filled, like endingCache's even when ctx has ended.
type filledCache struct {
	cache.Cache
	filled bool
}

func (filledCache) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return nil, nil
}

func (c filledCache) WaitForCacheSync(context.Context) bool { return c.filled }

// The core stays unset if the agent is told to end before the caches are filled.
func TestTheCoreIsSetOnceTheCachesAreFilled(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx         context.Context //nolint:containedctx // the case
		filled, set bool
	}{
		"filled":              {t.Context(), true, true},
		"not filled":          {t.Context(), false, false},
		"the agent has ended": {ended, true, false},
	} {
		holder := newCoreHolder()
		if err := setCoreOnceSynced(c.ctx, filledCache{filled: c.filled}, holder, core{}); err != nil {
			t.Error(err)
		}
		if _, err := holder.get(); (err == nil) != c.set {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A controller that gives up waiting for the API server ends the agent, and with it the hooks.
func TestControllersWaitForTheAPIServerAsLongAsItTakes(t *testing.T) {
	if limit := controllerOptions().CacheSyncTimeout; limit < 7*24*time.Hour {
		t.Errorf("they wait %s", limit)
	}
}

// The event NoEarlyHook is for nodes on which NRI is the only early hook that is switched on.
func TestNoEventWithoutNRIIfNoneIsExpected(t *testing.T) {
	for name, a := range map[string]*agent{
		"NRI is off":       {},
		"CNI is installed": {Options: Options{CNI: CNIInstall}, nriHook: &nri.Hook{}},
	} {
		if err := addEarlyHook(nil, a.Options, a.nriHook); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The plugin excludes the namespaces that the agent excludes; readiness includes the state of the chain.
func TestTheCNIHookIsWired(t *testing.T) {
	for mode, servers := range map[string]int{CNIOff: 0, CNIUninstall: 0, CNIInstall: 1} {
		a := &agent{core: newCoreHolder(), ready: &readiness{}, Options: Options{
			CNI: mode, Intent: intent.Config{ExcludedNamespaces: []string{"kube-system"}, AgentNamespace: "mesh"},
			Chain: Chain{Plugin: cni.Conf{Socket: "/run/x/cni.sock", ExcludeNamespaces: []string{"static"}}},
		}}
		run, err := a.newCNI()
		if err != nil || len(run) != servers || (a.cniState.server != nil) != (servers == 1) {
			t.Errorf("%s: %d servers, %v", mode, len(run), err)
		}
		for _, namespace := range []string{"static", "kube-system", "mesh"} {
			if mode != CNIOff && !a.Chain.Plugin.Excludes(namespace) {
				t.Errorf("%s: pods of %s do not pass", mode, namespace)
			}
		}
		if err := a.ready.check(t.Context()); (err != nil) != (mode != CNIOff) {
			t.Errorf("%s, before the API server is reached: ready %v", mode, err)
		}
		check := func() error { return nil } // of the chain
		a.cniState.checkChain.Store(&check)
		if err := a.ready.check(t.Context()); (err != nil) != (mode == CNIInstall) { // nobody listens yet
			t.Errorf("%s, with a chain: ready %v", mode, err)
		}
	}
}

// startNRI starts an agent's NRI hook where no runtime offers NRI, and returns once it knows that. The hook ends without an error.
func startNRI(t *testing.T, mode string) *agent {
	t.Helper()
	a := &agent{core: newCoreHolder(), ready: &readiness{}, metrics: prometheus.NewRegistry(), Options: Options{
		NRI: NRI{Mode: mode, Socket: t.TempDir() + "/none.sock", Name: nri.DefaultName, Index: nri.DefaultIndex},
	}}
	run, err := a.newNRI()
	if err != nil || len(run) != 1 {
		t.Fatalf("%d hooks, %v", len(run), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run[0](ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for checked := false; !checked; {
		_, checked = a.nriHook.Offered()
		<-time.After(time.Millisecond)
	}
	return a
}

// The NRI hook follows the flags, announces sandboxes, and is part of readiness and liveness.
func TestTheNRIHookIsWired(t *testing.T) {
	a := startNRI(t, NRIRequired)
	if len(a.announcers) != 1 || a.announcers[0]() || a.ready.liveCheck == nil {
		t.Fatalf("%d announcers, or no liveness check", len(a.announcers))
	}
	if err := a.ready.check(t.Context()); err == nil {
		t.Error("ready without the NRI that is required")
	}
	if e := statesOf(t, a); len(e) != 2 || e[1].Up || !strings.Contains(e[1].Message, "required") {
		t.Errorf("the agent says %+v", e)
	}
	off := &agent{Options: Options{NRI: NRI{Mode: NRIOff}}}
	if run, err := off.newNRI(); err != nil || len(run) != 0 {
		t.Errorf("switched off: %d hooks, %v", len(run), err)
	}
}

// An agent that may do without NRI is ready without it, and says so.
func TestTheAgentSaysThatNRIIsNotOffered(t *testing.T) {
	a := startNRI(t, NRIAuto)
	if err := a.ready.check(t.Context()); err != nil {
		t.Error(err)
	}
	if e := statesOf(t, a); len(e) != 2 || e[1].Up || !strings.Contains(e[1].Message, "offers no NRI") {
		t.Errorf("the agent says %+v", e)
	}
}

func TestASandboxThatIsDeletedIsForgotten(t *testing.T) {
	c := newTestCNIHook(t, &fakeNamespace{}, "true", nil)
	s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u-1", ID: "s-1", NetNS: "/run/netns/a"}
	ledger := c.core.core.Load().programmer.Ledger
	if err := c.Add(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if _, ok := ledger.Of("u-1"); !ok {
		t.Fatal("it was never known")
	}
	if err := c.Del(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if e, ok := ledger.Of("u-1"); ok {
		t.Errorf("remembered: %+v", e)
	}
}

// What the hooks report of a pod: whether it asks for rules, and whether it is on the host's network.
func TestWhatAHookKnowsOfAPod(t *testing.T) {
	s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u-1", ID: "s-1", NetNS: "/run/netns/a"}
	for initialize, want := range map[string]bool{"true": true, "": false} {
		asked, err := newTestCNIHook(t, &fakeNamespace{}, initialize, nil).Ensure(t.Context(), s)
		if err != nil || asked != want {
			t.Errorf("asking %q: %v, %v", initialize, asked, err)
		}
	}
	if host, known := newTestCNIHook(t, &fakeNamespace{}, "", nil).hostNetwork(t.Context(), s); host || !known {
		t.Errorf("host %v, known %v", host, known)
	}
	if _, known := newTestCNIHook(t, &fakeNamespace{}, "", errSome).hostNetwork(t.Context(), s); known {
		t.Error("known though the API server does not answer")
	}
	other := s
	other.UID = "u-2"
	if _, known := newTestCNIHook(t, &fakeNamespace{}, "", nil).hostNetwork(t.Context(), other); known {
		t.Error("another pod of the same name is taken for it")
	}
}
