package install

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// clear runs Clear until the test ends.
func (n *node) clear(t *testing.T, i *Installer) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- i.Clear(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// The agent that is replaced repairs its entry until it ends, and it ends only after this one is ready.
func TestClear_replacedAgentRepairs_wins(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-kc.conflist", plain)
	old := n.installer(t, func(i *Installer) { i.pace.first = time.Millisecond })
	n.start(t, old)
	eventually(t, "the old agent is in the chain", old.Chained)
	i := n.installer(t)
	n.clear(t, i)
	eventually(t, "the entry is removed though the old agent runs", func() bool {
		return n.count(Contended) > 0 && i.CheckRemoved() == nil && n.get(t, "10-kc.conflist") == plain
	})
	if n.count(Removed) < 2 || n.count(Leftover) == 0 {
		t.Errorf("%d removals and %d leftovers were notified", n.count(Removed), n.count(Leftover))
	}
}

// If another project restores its file at once, the entry is removed after a longer pause each time.
func TestClear_entryComesBack_waitsLonger(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-kc.conflist", chained)
	i := n.installer(t, func(i *Installer) { i.pace.first, i.quietTime = 20*time.Millisecond, time.Millisecond })
	n.clear(t, i)
	removed := 0
	for began := time.Now(); time.Since(began) < 300*time.Millisecond; <-time.After(time.Millisecond) {
		if i.CheckRemoved() == nil {
			removed++
			n.put(t, "10-kc.conflist", chained)
		}
	}
	// The pauses are random, below 20, 40, 80 ms and so on: five or six of them fit. Below 20 ms always, it would be some 25.
	if removed == 0 || removed > 12 {
		t.Errorf("removed %d times", removed)
	}
}

func TestClear_entryAppearsLater_isRemoved(t *testing.T) {
	n := newNode(t)
	if err := os.Remove(n.conf); err != nil {
		t.Fatal(err)
	}
	i := n.installer(t, func(i *Installer) { i.resync = 5 * time.Millisecond })
	if err := i.CheckRemoved(); err != nil {
		t.Errorf("without a directory: %v", err)
	}
	if err := os.Mkdir(n.conf, 0o755); err != nil {
		t.Fatal(err)
	}
	n.put(t, "10-kc.conflist", plain)
	want := n.tree(t)
	n.clear(t, i)
	if err := n.installer(t).Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is gone", func() bool { return n.count(Removed) == 1 && i.CheckRemoved() == nil })
	eventually(t, "the directory is as before", func() bool { return cmp.Equal(want, n.tree(t)) })
}

func TestClear_unreadableList_isReported(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-kc.conflist", chained)
	if err := os.Symlink("/nonexistent/11.conflist", filepath.Join(n.conf, "11-a.conflist")); err != nil {
		t.Fatal(err)
	}
	i := n.installer(t)
	if err := i.CheckRemoved(); err == nil || !strings.Contains(err.Error(), "10-kc.conflist holds the plugin's entry") || !strings.Contains(err.Error(), "11-a.conflist") {
		t.Errorf("left: %v", err)
	}
	n.clear(t, i)
	eventually(t, "it is notified", func() bool { return n.count(Leftover) == 1 })
	if err := i.CheckRemoved(); err == nil || n.get(t, "10-kc.conflist") != plain {
		t.Errorf("left: %v, %s", err, n.get(t, "10-kc.conflist"))
	}
}
