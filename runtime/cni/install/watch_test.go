package install

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestStart_fileWrittenAnew_isRepaired(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-kc.conflist", plain)
	n.start(t, n.installer(t))
	eventually(t, "the entry is there", func() bool { return n.get(t, "10-kc.conflist") == chained })
	n.put(t, "10-kc.conflist", strings.Replace(plain, "cni0", "cni1", 1))
	eventually(t, "the entry is back in the new text", func() bool {
		return n.get(t, "10-kc.conflist") == strings.Replace(chained, "cni0", "cni1", 1)
	})
	eventually(t, "it is notified as a repair", func() bool { return n.count(Chained) == 1 && n.count(Repaired) == 1 })
}

func TestStart_newFirstNetwork_isChainedTo(t *testing.T) {
	n := newNode(t)
	n.put(t, "50-kc.conflist", plain)
	n.start(t, n.installer(t))
	eventually(t, "the entry is there", func() bool { return n.get(t, "50-kc.conflist") == chained })
	n.put(t, "10-a.conflist", compact(`{"type":"a"}`))
	eventually(t, "the new first file is chained to", func() bool { return n.get(t, "10-a.conflist") == compact(`{"type":"a"}`, ourEntry) })
	if n.get(t, "50-kc.conflist") != chained {
		t.Error("the network used before lost its entry: without it, pods would start without the plugin if that network were used again")
	}
}

// The owner of a lone .conf may write a list in its place, or remove it.
func TestStart_loneConf_failsUntilItGoes(t *testing.T) {
	n := newNode(t)
	n.put(t, "50-kc.conflist", plain)
	i := n.installer(t)
	n.start(t, i)
	eventually(t, "the list is chained to", i.Chained)
	n.put(t, "10-flannel.conf", single)
	eventually(t, "it is notified", func() bool { return n.count(Failed) == 1 && !i.Chained() })
	if err := i.Check(); err == nil || !strings.Contains(err.Error(), "10-flannel.conflist") {
		t.Errorf("Check says %v", err)
	}
	if err := os.Remove(filepath.Join(n.conf, "10-flannel.conf")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the list is in use again", func() bool { return i.Chained() && i.Check() == nil })
}

func TestStart_listRemoved_chainsToTheNext(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-a.conflist", compact(`{"type":"a"}`))
	n.put(t, "50-kc.conflist", plain)
	i := n.installer(t)
	n.start(t, i)
	eventually(t, "the entry is there", func() bool { return n.get(t, "10-a.conflist") == compact(`{"type":"a"}`, ourEntry) })
	if err := os.Remove(filepath.Join(n.conf, "10-a.conflist")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the next network is chained to", func() bool { return n.get(t, "50-kc.conflist") == chained })
	eventually(t, "nothing is left of the other", func() bool { return len(n.tree(t)) == 2 })
}

func TestChained_listRemoved_isFalse(t *testing.T) {
	n := newNode(t)
	i := n.installer(t)
	n.start(t, i)
	if i.Chained() {
		t.Error("Chained without a network")
	}
	n.put(t, "10-kc.conflist", plain)
	eventually(t, "it is in the chain", i.Chained)
	if err := os.Remove(filepath.Join(n.conf, "10-kc.conflist")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is in none", func() bool { return !i.Chained() })
}

func TestStart_binaryRemoved_isPutBack(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-kc.conflist", plain)
	n.start(t, n.installer(t))
	binary := filepath.Join(n.bin, "istio-pod-network-cni")
	eventually(t, "the binary is there", func() bool { return isProgram(binary) && n.count(Chained) == 1 })
	if err := os.Remove(binary); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the binary is back", func() bool { return isProgram(binary) })
}

// While a project writes its file in place, the half-written file is not read, and the next file is not chained to instead.
func TestStart_fileWrittenInPlace_isReadWhole(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-kc.conflist", plain)
	n.put(t, "99-other.conflist", plain)
	n.start(t, n.installer(t, func(i *Installer) { i.quietTime = 100 * time.Millisecond }))
	eventually(t, "the entry is there", func() bool { return n.get(t, "10-kc.conflist") == chained })
	f, err := os.OpenFile(filepath.Join(n.conf, "10-kc.conflist"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := range plain { // longer than the quiet time in all, but never quiet for as long
		if i%8 == 0 {
			<-tick.C
		}
		if _, err := f.WriteString(plain[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the entry is back", func() bool { return n.get(t, "10-kc.conflist") == chained })
	if n.get(t, "99-other.conflist") != plain {
		t.Error("the next file was chained to")
	}
}

// If a project removes the entry whenever it sees it, as Cilium does with cni-exclusive, the entry is put back a few times, each time
// later, and then no more.
func TestStart_entryAlwaysRemoved_givesUp(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-kc.conflist", plain)
	i := n.installer(t, func(i *Installer) { i.pace.max, i.pace.window = 4, time.Hour })
	n.start(t, i)
	rewrites := 0
	eventually(t, "the installer gives up", func() bool {
		if n.get(t, "10-kc.conflist") == chained {
			rewrites++
			n.put(t, "10-kc.conflist", plain)
		}
		return n.count(Contended) == 1
	})
	if notified := n.count(Chained) + n.count(Repaired); rewrites != 4 || notified != 4 {
		t.Errorf("the entry was written %d times, and %d times were notified; want 4", rewrites, notified)
	}
	n.put(t, "11-occasion.conflist", plain) // triggers a check
	n.put(t, "10-kc.conflist", plain)
	quiet, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	<-quiet.Done()
	if n.get(t, "10-kc.conflist") != plain || n.count(Contended) != 1 {
		t.Errorf("after giving up: %s, %d events", n.get(t, "10-kc.conflist"), n.count(Contended))
	}
	if i.Chained() {
		t.Error("Chained after giving up")
	}
}

// With two agents of different versions, as in a rolling update, the newer one writes its entry and the older one leaves it.
func TestStart_twoVersions_newerEntryStays(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-kc.conflist", plain)
	n.start(t, n.installer(t))
	eventually(t, "the older entry is there", func() bool { return n.get(t, "10-kc.conflist") == chained })
	newer := strings.Replace(ourEntry, "/run/s", "/run/new", 1)
	other := newNode(t)
	other.bin, other.conf = n.bin, n.conf
	other.write(t, other.source, "#!newer")
	other.start(t, other.installer(t, func(i *Installer) { i.entry.text = []byte(newer) }))
	want := strings.Replace(chained, ourEntry, newer, 1)
	eventually(t, "the newer entry is there", func() bool { return n.get(t, "10-kc.conflist") == want })
	n.put(t, "11-occasion.conflist", plain)
	quiet, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	<-quiet.Done()
	binary, err := os.ReadFile(filepath.Join(n.bin, "istio-pod-network-cni"))
	if n.get(t, "10-kc.conflist") != want || n.count(Repaired) != 0 || err != nil || string(binary) != "#!newer" {
		t.Errorf("the older installer meddled: %s, binary %q, %v", n.get(t, "10-kc.conflist"), binary, err)
	}
}

func TestPacer_manyRewrites_waitLonger(t *testing.T) {
	p := pacer{first: time.Second, window: time.Minute, max: 4}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, want := range []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second} {
		d, spent := p.wait(now)
		if d != want || spent {
			t.Errorf("rewrite %d waits %v (%v), want %v", i, d, spent, want)
		}
		now = now.Add(d)
		p.record(now)
	}
	if d, spent := p.wait(now); d != 53*time.Second || !spent { // seven seconds went by since the first
		t.Errorf("the fifth waits %v (%v), want until the first is out of the window", d, spent)
	}
	if d, spent := p.wait(now.Add(time.Hour)); d != 0 || spent {
		t.Errorf("after a quiet hour it waits %v (%v)", d, spent)
	}
}
