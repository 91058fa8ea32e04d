package install

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
)

// derivedList is the name of the list that is derived from 10-flannel.conf.
const derivedList = "10-flannel-istio-pod-network-cni-10-flannel.conf.conflist"

// chosen returns the file that containerd and CRI-O use: they sort paths and take the first valid one.
func (n *node) chosen(t *testing.T) string {
	t.Helper()
	files, err := libcni.ConfFiles(n.conf, extensions())
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	for _, file := range files {
		data, errRead := os.ReadFile(file)
		if errors.Is(errRead, fs.ErrNotExist) { // taken away since it was listed
			continue
		}
		if errRead != nil {
			t.Fatal(errRead)
		}
		if strings.HasSuffix(file, listSuffix) {
			_, err = libcni.NetworkConfFromBytes(data)
		} else {
			_, err = libcni.NetworkPluginConfFromBytes(data)
		}
		if err == nil {
			return filepath.Base(file)
		}
	}
	return ""
}

func TestTheDerivedListIsChosenBeforeItsFile(t *testing.T) {
	for _, name := range []string{"10-flannel.conf", "10-flannel.json", "00-multus.conf", "a.b.conf", "99-z~.conf", "x-istio-pod-network-cni-y.conf"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.put(t, name, single)
			n.put(t, "zz-next.conflist", plain)
			if err := n.installer(t).Install(t.Context()); err != nil {
				t.Fatal(err)
			}
			got := n.chosen(t)
			d, ok := derivedFrom(filepath.Join(n.conf, got), "istio-pod-network-cni")
			if !ok || filepath.Base(d.single) != name || n.get(t, got) != converted || n.get(t, name) != single {
				t.Errorf("the runtime uses %s, derived from %q", got, d.single)
			}
			// By these two tests Multus skips its own files when it looks for the network to delegate to.
			if name == "00-multus.conf" && (!strings.HasPrefix(got, "00-multus") || !strings.Contains(got, "00-multus.conf")) {
				t.Errorf("Multus would delegate to itself through %s", got)
			}
		})
	}
}

// Multus deletes its file by name at SIGTERM. From then on the runtime must use the next network, also if no agent runs.
func TestOwnerDeletesItsFile(t *testing.T) {
	for name, running := range map[string]bool{"while the agent runs": true, "before the agent starts": false} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.put(t, "10-flannel.conf", single)
			n.put(t, "50-kc.conflist", plain)
			if err := n.installer(t).Install(t.Context()); err != nil {
				t.Fatal(err)
			}
			i := n.installer(t)
			if running {
				n.start(t, i)
				eventually(t, "the agent looks", i.Chained)
			}
			if err := os.Remove(filepath.Join(n.conf, "10-flannel.conf")); err != nil {
				t.Fatal(err)
			}
			if !running {
				if err := i.Check(); err == nil {
					t.Error("Check is content with the list of a network that is gone")
				}
				n.start(t, i)
			}
			eventually(t, "the next network is used", func() bool { return n.chosen(t) == "50-kc.conflist" && n.get(t, "50-kc.conflist") == chained })
			eventually(t, "nothing is left of the other", func() bool { return len(n.tree(t)) == 2 })
		})
	}
}

func TestOwnerOfAListDeletesItsFile(t *testing.T) {
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
	eventually(t, "it is the runtime's, alone", func() bool { return n.chosen(t) == "50-kc.conflist" && len(n.tree(t)) == 2 })
}

func TestOwnerWritesTheConfAnew(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-flannel.conf", single)
	i := n.installer(t)
	n.start(t, i)
	eventually(t, "the agent looks", i.Chained)
	newer := strings.Replace(single, "true", "false", 1)
	n.put(t, "10-flannel.conf", newer) // as flannel's init container does whenever it starts
	eventually(t, "the list follows", func() bool { return n.get(t, derivedList) == strings.Replace(converted, "true", "false", 1) })
	if n.get(t, "10-flannel.conf") != newer {
		t.Error("the owner's file was changed")
	}
	n.put(t, "10-flannel.conf", "{}") // Multus's way to close a node
	eventually(t, "the list goes with a configuration that is none any more", func() bool {
		_, err := os.Stat(filepath.Join(n.conf, derivedList))
		return err != nil
	})
}

// The two agents of a rolling update have different entries. Neither corrects the other's.
func TestAnEntryOfAnotherVersionStaysInTheDerivedList(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-flannel.conf", single)
	older := n.installer(t)
	n.start(t, older)
	eventually(t, "the older one chains", older.Chained)
	newer := n.installer(t, func(c *Config) { c.Entry = []byte(`{"type":"istio-pod-network-cni","socket":"/run/new"}`) })
	n.start(t, newer)
	eventually(t, "the newer one chains", newer.Chained)
	if err := older.Check(); err != nil || n.get(t, derivedList) != strings.Replace(converted, "/run/s", "/run/new", 1) || n.count(Repaired) != 0 {
		t.Errorf("%v, %d repairs, %s", err, n.count(Repaired), n.get(t, derivedList))
	}
}

func TestOthersWereChainedToTheDerivedList(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-flannel.conf", single)
	i := n.installer(t)
	if err := i.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	third := ",\n    {\"type\": \"third\"}\n  ]"
	n.put(t, derivedList, strings.Replace(converted, "\n  ]", third, 1))
	if err := n.installer(t).Install(t.Context()); err != nil || n.get(t, derivedList) != strings.Replace(converted, "\n  ]", third, 1) {
		t.Errorf("%v: the third plugin was taken out:\n%s", err, n.get(t, derivedList))
	}
	if err := i.Uninstall(); err != nil {
		t.Fatal(err)
	}
	want := strings.Replace(strings.Replace(converted, ",\n    "+ourEntry, "", 1), "\n  ]", third, 1)
	if got := n.get(t, derivedList); got != want || n.get(t, "10-flannel.conf") != single {
		t.Errorf("left:\n%s", got)
	}
}

func TestUninstallRemovesTheDerivedListOnly(t *testing.T) {
	for name, change := range map[string]func(n *node) error{
		"of a file that has changed": func(n *node) error {
			return os.WriteFile(filepath.Join(n.conf, "10-flannel.conf"), []byte(strings.Replace(single, "true", "false", 1)), 0o600)
		},
		"of a file that is gone":  func(n *node) error { return os.Remove(filepath.Join(n.conf, "10-flannel.conf")) },
		"that is no longer valid": func(n *node) error { return os.WriteFile(filepath.Join(n.conf, derivedList), nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.put(t, "10-flannel.conf", single)
			i := n.installer(t)
			if err := i.Install(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := change(n); err != nil {
				t.Fatal(err)
			}
			want := n.tree(t)
			delete(want, filepath.Join(n.conf, derivedList))
			if err := i.Uninstall(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, n.tree(t)); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
		})
	}
}

// The owner may change or remove its file after it was read and before the list is written.
func TestADerivedListIsRemovedIfItsFileChangedMeanwhile(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-flannel.conf", single)
	d := derived{kind: "istio-pod-network-cni", single: filepath.Join(n.conf, "10-flannel.conf")}
	owner, err := load(d.single)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func() error{
		"written":    func() error { return os.WriteFile(d.single, []byte("{}"), 0o600) },
		"taken away": func() error { return os.Remove(d.single) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if err := d.write(owner, []byte(converted)); !errors.Is(err, errChanged) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(d.list()); err == nil {
			t.Errorf("%s: the list was not removed", name)
		}
	}
}

func TestADirectoryNameWithGlobCharacters(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[net].d*")
	d := derived{kind: "x", single: filepath.Join(dir, "10-a.conf")}
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(d.list(), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if got, err := staleDerived(dir, "x", ""); err != nil || len(got) != 1 || got[0] != d.list() {
		t.Errorf("%q, %v", got, err)
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

func TestNewChecksTheConfiguration(t *testing.T) {
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
