package cniinstall

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const kept = "10-flannel.conf.istio-pod-network-cni"

func TestOwnerWritesTheConfAnew(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-flannel.conf", single)
	i := n.installer(t)
	if err := i.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(single, "true", "false", 1)
	n.put(t, "10-flannel.conf", newer) // as flannel's init container does whenever it starts
	if err := n.installer(t).Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := n.get(t, "10-flannel.conf.conflist"); got != strings.Replace(converted, "true", "false", 1) {
		t.Error(got)
	}
	n.put(t, "10-flannel.conf", single) // and once more, right before the end
	if err := i.Uninstall(); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{n.conf: "drwxr-xr-x", filepath.Join(n.conf, "10-flannel.conf"): "-rw-r--r--\n" + single}
	if diff := cmp.Diff(want, n.tree(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func TestOthersWereChainedToTheConvertedList(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-flannel.conf", single)
	i := n.installer(t)
	if err := i.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	third := ",\n    {\"type\": \"third\"}\n  ]"
	n.put(t, "10-flannel.conf.conflist", strings.Replace(converted, "\n  ]", third, 1))
	if err := i.Uninstall(); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{n.conf: "drwxr-xr-x", filepath.Join(n.conf, "10-flannel.conf.conflist"): "-rw-r--r--\n" +
		strings.Replace(strings.Replace(converted, ",\n    "+ourEntry, "", 1), "\n  ]", third, 1)}
	if diff := cmp.Diff(want, n.tree(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// Between looking at the file and putting it away its owner may write it, or take it away.
func TestConversionThatCameTooLate(t *testing.T) {
	c := conversion{kind: "istio-pod-network-cni"}
	n := newNode(t)
	c.single = filepath.Join(n.conf, "10-flannel.conf")
	if err := c.make([]byte(single), []byte(converted)); !errors.Is(err, errChanged) {
		t.Errorf("a file that vanished: %v", err)
	}
	if got := n.tree(t); len(got) != 1 {
		t.Errorf("a network that its owner took away is back: %v", got)
	}
	newer := strings.Replace(single, "true", "false", 1)
	n.put(t, "10-flannel.conf", newer)
	if err := c.make([]byte(single), []byte(converted)); !errors.Is(err, errChanged) {
		t.Errorf("a file that was written: %v", err)
	}
	if got := n.get(t, "10-flannel.conf"); got != newer {
		t.Errorf("the owner's file is now\n%s", got)
	}
	if err := n.installer(t).Install(t.Context()); err != nil || n.get(t, kept) != newer {
		t.Errorf("the next round: %v", err)
	}
}

func TestUninstallOfNothing(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-kc.conflist", plain)
	n.put(t, "11-broken.conflist", plain[:40]+ourEntry)
	before := n.tree(t)
	i := n.installer(t)
	if err := errors.Join(i.Uninstall(), i.RemoveBinary()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, n.tree(t)); diff != "" {
		t.Error(diff)
	}
	if err := os.RemoveAll(n.conf); err != nil {
		t.Fatal(err)
	}
	if err := i.Uninstall(); err != nil {
		t.Error(err)
	}
}

func TestInstallerIsConfiguredOrNotMade(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"an entry that is no object":    func(c *Config) { c.Entry = []byte("[]") },
		"an entry without a type":       func(c *Config) { c.Entry = []byte("{}") },
		"a type like a path":            func(c *Config) { c.Entry = []byte(`{"type":"../sh"}`) },
		"a relative directory":          func(c *Config) { c.BinDir = "bin" },
		"no directory":                  func(c *Config) { c.ConfDir = "" },
		"a binary with a relative path": func(c *Config) { c.Source = "plugin" },
	} {
		c := Config{BinDir: "/bin", ConfDir: "/conf", Source: "/plugin", Entry: []byte(ourEntry)}
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: made", name)
		}
	}
}
