package conformance

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/nftables"
	"istio-pod-network-controller/iptables/routing"
	"istio-pod-network-controller/iptables/xtables"
	"istio-pod-network-controller/test/kerneltest"
)

// probeTime bounds a probe. One without an answer by then counts as NOBODY.
const probeTime = 1200 * time.Millisecond

// backend is what is under test.
type backend interface {
	Apply(ctx context.Context, netns string, want iptables.Ruleset) (iptables.Outcome, error)
	Verify(ctx context.Context, netns string, want iptables.Ruleset) (iptables.Drift, error)
	Remove(ctx context.Context, netns string) (bool, error)
	List(ctx context.Context, netns string) (have iptables.Listing, ok bool, err error)
	Name() string
}

func backends(t *testing.T) []backend {
	t.Helper()
	kerneltest.ProgramPath(t, "iptables-nft-restore")
	return []backend{
		kerneltest.NewByPath(t, nftables.New(), routing.Remove), kerneltest.NewByPath(t, xtables.New(t.Context(), xtables.Config{Flavour: xtables.NFT}), routing.Remove),
	}
}

// eachMode calls f with each backend and mode, in parallel tests.
func eachMode(t *testing.T, f func(t *testing.T, b backend, mode iptables.Mode)) {
	t.Helper()
	for _, b := range backends(t) {
		for _, mode := range []iptables.Mode{iptables.ModeRedirect, iptables.ModeTProxy} {
			t.Run(fmt.Sprintf("%s/%s", b.Name(), mode), func(t *testing.T) {
				t.Parallel()
				f(t, b, mode)
			})
		}
	}
}

func mustApply(t *testing.T, b backend, w world, c configuration) {
	t.Helper()
	if _, err := b.Apply(t.Context(), w.pod().Path(), c.rules(t)); err != nil {
		t.Fatal(err)
	}
}

// Every configuration behaves as recorded, and a second call changes nothing.
func TestRules_everyProbe_behavesAsRecorded(t *testing.T) {
	t.Parallel()
	probes := readProbes(t)
	for _, b := range backends(t) {
		for _, c := range readConfigurations(t) {
			t.Run(b.Name()+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, c.families)
				w.listen(t, c)
				mustApply(t, b, w, c)
				w.compare(t, probes, c.want)
				if out, err := b.Apply(t.Context(), w.pod().Path(), c.rules(t)); err != nil || out.Changed() {
					t.Errorf("again: changed %q, error %v", out.Drift, err)
				}
			})
		}
	}
}

// compare makes all probes of a configuration, and reports each that somebody else answered than recorded.
func (w world) compare(t *testing.T, probes []probe, want map[string]string) {
	t.Helper()
	got := w.run(t.Context(), probes, want, probeTime)
	// On a busy machine the time may be too short: probes that should have been answered are made again with more.
	late := map[string]string{}
	for row, cell := range want {
		if answer, ok := got[row]; ok && answer == "NOBODY" && cell != answer {
			late[row] = cell
		}
	}
	maps.Copy(got, w.run(t.Context(), probes, late, 5*probeTime))
	for _, p := range probes {
		if cell, ok := want[p.row()]; ok && got[p.row()] != cell {
			t.Errorf("%s: answered by %s, want %s", p.row(), got[p.row()], cell)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d probes were made, %d are recorded", len(got), len(want))
	}
}

// run makes the probes in wanted, many at a time, since some take until their time is up.
func (w world) run(ctx context.Context, probes []probe, wanted map[string]string, patience time.Duration) map[string]string {
	got := make(map[string]string, len(wanted))
	var mu sync.Mutex
	var wg sync.WaitGroup
	gate := make(chan struct{}, 48)
	for _, p := range probes {
		if _, ok := wanted[p.row()]; !ok {
			continue
		}
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			answer := w.ask(ctx, p, patience)
			mu.Lock()
			defer mu.Unlock()
			got[p.row()] = answer
		})
	}
	wg.Wait()
	return got
}

func (w world) ask(ctx context.Context, p probe, patience time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	owner := kerneltest.Owner{UID: p.UID, GID: p.GID}
	dst := net.JoinHostPort(p.Dst, fmt.Sprint(p.Port))
	banner, err := kerneltest.Ask(ctx, w.spaces[p.from], owner, p.Proto, p.Src, dst)
	if err != nil {
		return "NOBODY"
	}
	return banner
}

// Whatever modes a pod had before, its present one is there whole, and behaves as recorded then; and removal leaves nothing.
func TestRules_modeChanged_nothingIsLeft(t *testing.T) {
	t.Parallel()
	all := readConfigurations(t)
	for _, b := range backends(t) {
		for _, families := range []string{"4", "6", "ds"} {
			same := slices.DeleteFunc(slices.Clone(all), func(c configuration) bool { return c.families != families })
			t.Run(b.Name()+"/"+families, func(t *testing.T) {
				t.Parallel()
				untouched := newWorld(t, families).snapshot(t)
				for i, last := range same {
					before := []configuration{same[(i+1)%len(same)], same[(i+len(same)/2+1)%len(same)]}
					switchTo(t, b, append(before, last), untouched)
				}
			})
		}
	}
}

// switchTo gives a pod one configuration after the other, and takes the last one away again.
func switchTo(t *testing.T, b backend, all []configuration, untouched string) {
	t.Helper()
	last := all[len(all)-1]
	w := newWorld(t, last.families)
	for _, c := range all {
		mustApply(t, b, w, c)
	}
	if drift, err := b.Verify(t.Context(), w.pod().Path(), last.rules(t)); err != nil || len(drift) != 0 {
		t.Errorf("%s: drift %v, error %v", last.name, drift, err)
	}
	if _, err := b.Remove(t.Context(), w.pod().Path()); err != nil {
		t.Fatal(err)
	}
	if got := w.snapshot(t); got != untouched {
		t.Errorf("after removal of %s: %s\nwant %s", last.name, got, untouched)
	}
}
