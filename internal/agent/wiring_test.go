package agent

import (
	"context"
	"errors"
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

// filledCache is one whose wait ends with what it was told, as endingCache's does also when ctx has ended.
type filledCache struct {
	cache.Cache
	filled bool
}

func (filledCache) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return nil, nil //nolint:nilnil // nobody asks it
}

func (c filledCache) WaitForCacheSync(context.Context) bool { return c.filled }

// An agent that is told to end before it has read its pods knows none.
func TestTheDoorOpensOnFilledCachesOnly(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx          context.Context //nolint:containedctx // the case
		filled, open bool
	}{
		"filled":              {t.Context(), true, true},
		"not filled":          {t.Context(), false, false},
		"the agent has ended": {ended, true, false},
	} {
		d := &door{}
		if err := openDoor(c.ctx, filledCache{filled: c.filled}, d, core{}); err != nil {
			t.Error(err)
		}
		if _, err := d.enter(); (err == nil) != c.open {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Controllers that gave up waiting for the API server would end the agent, and with it the entrances.
func TestControllersWaitForTheAPIServerAsLongAsItTakes(t *testing.T) {
	if limit := controllerOptions().CacheSyncTimeout; limit < 7*24*time.Hour {
		t.Errorf("they wait %s", limit)
	}
}

// The event that no early entrance is there is for nodes where NRI was to be the only one. Without it nothing is registered.
func TestWhoNeedsNoEarlyEntranceIsNotTold(t *testing.T) {
	for name, a := range map[string]*agent{
		"NRI is off":                     {},
		"the CNI chain stands in for it": {Options: Options{CNI: CNIInstall}, nri: &nri.Entrance{}},
	} {
		if err := a.addEarlyEntrance(nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The plugin passes the pods that the agent passes, whatever state the agent is in; readiness has what may be missing.
func TestTheCNIEntranceIsWired(t *testing.T) {
	for mode, servers := range map[string]int{CNIOff: 0, CNIUninstall: 0, CNIInstall: 1} {
		a := &agent{door: &door{}, ready: &readiness{}, Options: Options{
			CNI: mode, Intent: intent.Config{ExcludedNamespaces: []string{"kube-system"}, AgentNamespace: "mesh"},
			Chain: Chain{Plugin: cni.Conf{Socket: "/run/x/cni.sock", ExcludeNamespaces: []string{"static"}}},
		}}
		run, err := a.newCNI()
		if err != nil || len(run) != servers || (a.cni.server != nil) != (servers == 1) {
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
		a.cni.check.Store(&check)
		if err := a.ready.check(t.Context()); (err != nil) != (mode == CNIInstall) { // nobody listens yet
			t.Errorf("%s, with a chain: ready %v", mode, err)
		}
	}
}

// NRI is told what the flags say, and the agent is live as long as NRI is.
func TestTheNRIEntranceIsWired(t *testing.T) {
	a := &agent{door: &door{}, ready: &readiness{}, metrics: prometheus.NewRegistry(), Options: Options{
		NRI: NRI{Mode: NRIRequired, Socket: t.TempDir() + "/none.sock", Name: nri.DefaultName, Index: nri.DefaultIndex},
	}}
	run, err := a.newNRI()
	if err != nil || len(run) != 1 || len(a.announcers) != 1 || a.announcers[0]() || len(a.ready.alive) != 1 {
		t.Fatalf("%d entrances, %d that tell, %d that must live, %v", len(run), len(a.announcers), len(a.ready.alive), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run[0](ctx) }()
	for looked := false; !looked; {
		_, looked = a.nri.Offered()
		<-time.After(time.Millisecond)
	}
	if err := a.ready.check(t.Context()); err == nil {
		t.Error("ready without the NRI that is required")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	a.NRI.Mode = NRIOff
	if run, err := a.newNRI(); err != nil || len(run) != 0 {
		t.Errorf("switched off: %d entrances, %v", len(run), err)
	}
}

func TestLiveNamesWhatMustBeStartedAnew(t *testing.T) {
	r := &readiness{}
	r.addLive(func(context.Context) error { return nil })
	r.addLive(func(context.Context) error { return errSome })
	if err := r.live(t.Context()); !errors.Is(err, errSome) {
		t.Error(err)
	}
}

func TestASandboxThatIsDeletedIsForgotten(t *testing.T) {
	c := chainTo(t, &fakeNamespace{}, "true", nil)
	s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u-1", ID: "s-1", NetNS: "/run/netns/a"}
	ledger := c.door.core.Load().programmer.Ledger
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

// What the entrances report of a pod: whether it asks for rules, and whether it is on the host's network.
func TestWhatAnEntranceKnowsOfAPod(t *testing.T) {
	s := podnet.Sandbox{Namespace: "shop", Name: "cart", UID: "u-1", ID: "s-1", NetNS: "/run/netns/a"}
	for initialize, want := range map[string]bool{"true": true, "": false} {
		asked, err := chainTo(t, &fakeNamespace{}, initialize, nil).Ensure(t.Context(), s)
		if err != nil || asked != want {
			t.Errorf("asking %q: %v, %v", initialize, asked, err)
		}
	}
	if host, known := chainTo(t, &fakeNamespace{}, "", nil).hostNetwork(t.Context(), s); host || !known {
		t.Errorf("host %v, known %v", host, known)
	}
	if _, known := chainTo(t, &fakeNamespace{}, "", errSome).hostNetwork(t.Context(), s); known {
		t.Error("known though the API server does not answer")
	}
	other := s
	other.UID = "u-2"
	if _, known := chainTo(t, &fakeNamespace{}, "", nil).hostNetwork(t.Context(), other); known {
		t.Error("another pod of the name is taken for it")
	}
}
