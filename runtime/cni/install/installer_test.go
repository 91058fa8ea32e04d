package install

import (
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNew_wrongConfig_isRefused(t *testing.T) {
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

func TestUninstall_noEntry_changesNothing(t *testing.T) {
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
