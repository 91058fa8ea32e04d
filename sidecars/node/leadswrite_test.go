package node

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"istio-pod-network-controller/internal/podnet"
)

// A note is of one sandbox, and of a pod whose rules lead somewhere.
func TestSet_anotherSandbox_replacesTheNote(t *testing.T) {
	dir := t.TempDir()
	l := newLeadsIn(t, dir)
	s := podnet.Sandbox{UID: "u1", ID: "s1"}
	set := func(now, wantBefore lead, wantChanged bool) {
		t.Helper()
		if before, changed, err := l.set(s, now); err != nil || changed != wantChanged || before != wantBefore {
			t.Errorf("%+v: before %+v, changed %v, error %v", now, before, changed, err)
		}
	}
	own, shared := lead{Profile: "own"}, lead{Profile: "shared", Shared: true}
	set(lead{}, lead{}, false) // rules that never were
	set(shared, lead{}, true)
	set(own, shared, true)
	set(own, own, false)
	if got, known := newLeadsIn(t, dir).of(s); !known || got != own {
		t.Errorf("noted %+v", got)
	}
	if got, known := l.of(podnet.Sandbox{UID: "u1"}); !known || got != own {
		t.Errorf("a sandbox whose ID is not known yet: %+v", got)
	}
	s.ID = "s2"
	if _, known := l.of(s); known {
		t.Error("the next sandbox has the lead of the one before")
	}
	set(own, lead{}, true)
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 || files[0].Name() != "u1.s2" {
		t.Errorf("notes %v, error %v", files, err)
	}
}

// A note that cannot be written must not say what was before, and is written later.
func TestSet_noteNotWritable_isWrittenLater(t *testing.T) {
	m := newChanging(t)
	m.must("it starts", "edge", false)
	m.optOut()
	m.choose("other-user")
	name := m.cluster.leads.path(theSandbox().UID, theSandbox().ID)
	inTheWay := filepath.Join(name+unfinished, "x")
	if err := os.MkdirAll(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	m.must("no room", "other-user", false)
	if l := newLeadsIn(t, m.dir); l.known[theSandbox().UID].Now.Profile == "edge" {
		t.Error("the next agent takes the rules to lead to edge")
	}
	if err := os.RemoveAll(name + unfinished); err != nil {
		t.Fatal(err)
	}
	m.must("there is room again", "other-user", false)
	if l := newLeadsIn(t, m.dir); l.known[theSandbox().UID].Now.Profile != "other-user" {
		t.Errorf("the next agent takes the rules to lead to %+v", l.known)
	}
}

// Notes of sandboxes that have ended while no agent ran are removed, and what is no note harms nobody.
func TestPrune_endedSandboxes_haveNoNotes(t *testing.T) {
	dir := t.TempDir()
	l := newLeadsIn(t, dir)
	for _, id := range []string{"1", "2"} {
		if _, changed, err := l.set(podnet.Sandbox{UID: "u" + id, ID: "s" + id}, lead{Profile: "edge"}); err != nil || !changed {
			t.Fatalf("changed %v, error %v", changed, err)
		}
	}
	for name, text := range map[string]string{"u3.s3": "{", "u4.s4.new": "{}", "u5": "{}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if l = newLeadsIn(t, dir); len(l.known) != 2 {
		t.Fatalf("noted %v", l.known)
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	l.prune(ctx, func(_ context.Context, sandbox string) (bool, error) {
		if asked++; asked == 2 {
			cancel()
		}
		return sandbox == "s1", nil
	})
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 || files[0].Name() != "u1.s1" || len(l.known) != 1 {
		t.Errorf("files %v, known %v, error %v", files, l.known, err)
	}
}

// A pod gets a new sandbox while the old one is asked about.
func TestPrune_sandboxMadeAnew_keepsItsNote(t *testing.T) {
	l := newLeadsIn(t, t.TempDir())
	set := func(sandbox string) {
		if _, _, err := l.set(podnet.Sandbox{UID: "u1", ID: sandbox}, lead{Profile: "edge"}); err != nil {
			t.Error(err)
		}
	}
	set("s1")
	ctx, cancel := context.WithCancel(t.Context())
	l.prune(ctx, func(context.Context, string) (bool, error) {
		set("s2")
		cancel()
		return false, nil
	})
	if _, known := l.of(podnet.Sandbox{UID: "u1", ID: "s2"}); !known {
		t.Errorf("known %v", l.known)
	}
}
