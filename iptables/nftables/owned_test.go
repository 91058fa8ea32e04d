package nftables

import (
	"context"
	"errors"
	"testing"

	nft "github.com/google/nftables"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/iptables/foreign"
	"istio-pod-network-controller/test/kerneltest"
)

// own replaces tables by empty ones that a process of the pod owns, until end closes its socket.
func own(t *testing.T, ns *netns.NS, names ...string) (end func()) {
	t.Helper()
	kerneltest.NeedOwnedTables(t)
	pod, err := nft.New(nft.WithNetNSFd(ns.Fd()), nft.AsLasting())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		table := &nft.Table{Family: nft.TableFamilyINet, Name: name}
		pod.AddTable(table)
		pod.DelTable(table)
		pod.AddTable(&nft.Table{Family: nft.TableFamilyINet, Name: name, Flags: nft.TableFlagOwner})
	}
	if err := pod.Flush(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := pod.CloseLasting(); err != nil { // the table goes with its owner
			t.Fatal(err)
		}
	}
}

// listenAll opens the listeners that answer for the application, the proxy and the world beyond.
func listenAll(t *testing.T, pod, world *netns.NS) {
	t.Helper()
	kerneltest.Listen(t, pod, kerneltest.App, "APP", 8080)
	kerneltest.Listen(t, pod, kerneltest.Proxy, "PROXY", 15001, 15006)
	kerneltest.Listen(t, world, kerneltest.App, "WORLD", 80)
}

// whoAnswers connects in both directions and both families.
func whoAnswers(t *testing.T, pod, world *netns.NS) (out, in string) {
	t.Helper()
	for _, dst := range []string{kerneltest.Outside4 + ":80", "[" + kerneltest.Outside6 + "]:80"} {
		got, _ := kerneltest.Dial(t.Context(), pod, kerneltest.App, "", dst)
		out += got.Banner + " "
	}
	for _, dst := range []string{kerneltest.Pod4 + ":8080", "[" + kerneltest.Pod6 + "]:8080"} {
		got, _ := kerneltest.Dial(t.Context(), world, kerneltest.App, "", dst)
		in += got.Banner + " "
	}
	return out, in
}

// Nobody else can change a table that a process owns. The rules are in the second table as long as it lives.
func TestApply_podOwnsOurTable_secondTableCaptures(t *testing.T) {
	pod, world := kerneltest.NewPod(t)
	listenAll(t, pod, world)
	b, want := newByPath(t), rules(t, nil)
	answered := func(when, out, in string) {
		t.Helper()
		if gotOut, gotIn := whoAnswers(t, pod, world); gotOut != out || gotIn != in {
			t.Errorf("%s: answered by %q and %q, want %q and %q", when, gotOut, gotIn, out, in)
		}
	}
	const proxyOut, proxyIn = "PROXY:15001 PROXY:15001 ", "PROXY:15006 PROXY:15006 "
	mustApply(t, b, pod, want)
	answered("ours", proxyOut, proxyIn)
	end := own(t, pod, iptables.TableName)
	answered("owned", "WORLD:80 WORLD:80 ", "APP:8080 APP:8080 ")
	if out, err := b.Apply(t.Context(), pod.Path(), want); err != nil || !out.Changed() || !out.Provisional {
		t.Errorf("%+v, error %v", out, err)
	}
	mustHold(t, pod, want)
	answered("owned, and applied", proxyOut, proxyIn)
	other := rules(t, func(s *iptables.Spec) { s.ExcludeInboundPorts = []uint16{15020, 8080} })
	mustApply(t, b, pod, other)
	mustHold(t, pod, other)
	answered("with other rules", proxyOut, "APP:8080 APP:8080 ")
	inTable(t, b, pod, iptables.SecondTableName)
	end()
	if out, err := b.Apply(t.Context(), pod.Path(), want); err != nil || !out.Changed() || out.Provisional {
		t.Errorf("%+v, error %v", out, err)
	}
	mustHold(t, pod, want)
	answered("the owner has gone", proxyOut, proxyIn)
	inTable(t, b, pod, iptables.TableName)
	if o, err := readTable(t.Context(), pod, iptables.SecondTableName); err != nil || o.exists() {
		t.Errorf("the second table is left: %v", err)
	}
}

// inTable reads the rules, and wants them in a table.
func inTable(t *testing.T, b byPath, ns *netns.NS, name string) {
	t.Helper()
	present, errPresent := b.Present(t.Context(), ns.Path())
	have, ok, err := b.Read(t.Context(), ns.Path())
	if err := errors.Join(err, errPresent); err != nil || !ok || !present || have.Table != name || have.View().Table != name || len(have.Chains) == 0 {
		t.Errorf("present %v, read %v, %d chains in table %q, want %q: %v", present, ok, len(have.Chains), have.Table, name, err)
	}
}

func TestRemove_podOwnsOurTable_takesTheSecondAway(t *testing.T) {
	ns, b, want := kerneltest.New(t), newByPath(t), rules(t, nil)
	defer own(t, ns, iptables.TableName)()
	mustApply(t, b, ns, want)
	for _, was := range []bool{true, false} {
		present, errPresent := b.Present(t.Context(), ns.Path())
		removed, err := b.Remove(t.Context(), ns.Path())
		if err := errors.Join(err, errPresent); err != nil || present != was || removed != was {
			t.Errorf("present %v, removed %v, want %v: %v", present, removed, was, err)
		}
	}
}

func TestApply_podOwnsBothTables_isAnError(t *testing.T) {
	ns, b, want := kerneltest.New(t), newByPath(t), rules(t, nil)
	end := own(t, ns, iptables.TableName, iptables.SecondTableName)
	bounded(t, "apply", func(ctx context.Context) error {
		if _, err := b.Apply(ctx, ns.Path(), want); !errors.Is(err, ErrOwned) {
			t.Error(err)
		}
		return nil
	})
	if drift, err := b.Verify(t.Context(), ns.Path(), want); err != nil || len(drift) == 0 {
		t.Errorf("drift %q, error %v", drift, err)
	}
	if have, ok, err := b.Read(t.Context(), ns.Path()); err != nil || ok {
		t.Errorf("read %+v, %v, error %v", have, ok, err)
	}
	end()
	mustApply(t, b, ns, want)
	mustHold(t, ns, want)
}

// Without an owner of the first one, a second table is not needed.
func TestApply_secondTableBesideOurs_isRemoved(t *testing.T) {
	ns, b, want := kerneltest.New(t), newByPath(t), rules(t, nil)
	mustApply(t, b, ns, want)
	mustTransact(t, ns, func(c *nft.Conn) error {
		c.AddTable(&nft.Table{Family: nft.TableFamilyINet, Name: iptables.SecondTableName})
		return c.Flush()
	})
	if drift, err := b.Verify(t.Context(), ns.Path(), want); err != nil || len(drift) != 1 {
		t.Errorf("drift %q, error %v", drift, err)
	}
	mustApply(t, b, ns, want)
	mustHold(t, ns, want)
	defer own(t, ns, iptables.SecondTableName)()
	mustHold(t, ns, want)
}

// A process of the pod may delete the second table first. If its transaction counted as ours, everything else in it would be remembered as
// ours, too.
func TestWrite_secondTableHasGone_isNoTransaction(t *testing.T) {
	for name, there := range map[string]bool{"it is there": true, "it has gone": false} {
		ns, want := kerneltest.New(t), rules(t, nil)
		if there {
			mustTransact(t, ns, func(c *nft.Conn) error {
				c.AddTable(&nft.Table{Family: nft.TableFamilyINet, Name: iptables.SecondTableName})
				return c.Flush()
			})
		}
		reader := foreign.NewReader()
		before, okBefore := reader.State(ns)
		fresh, errFresh := create(want)
		made, err := write(t.Context(), ns, comparison{have: outline{name: iptables.TableName, surplus: true}}, want, fresh)
		after, okAfter := reader.State(ns)
		if err := errors.Join(err, errFresh); err != nil || !okBefore || !okAfter || after != before.After(made) {
			t.Errorf("%s: %d transactions are said to be ours, from %+v to %+v: %v", name, made, before, after, err)
		}
	}
}
