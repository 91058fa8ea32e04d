package install

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ourEntry is what the tests install.
const ourEntry = `{"type":"istio-pod-network-cni","socket":"/run/s"}`

// node is the part of a node that an installer sees.
type node struct {
	bin, conf, source string

	mu     sync.Mutex
	events []Event
}

func newNode(t *testing.T) *node {
	t.Helper()
	root := t.TempDir()
	n := &node{bin: filepath.Join(root, "bin"), conf: filepath.Join(root, "net.d"), source: filepath.Join(root, "plugin")}
	for _, dir := range []string{n.bin, n.conf} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.write(t, n.source, "#!program")
	return n
}

func (n *node) installer(t *testing.T, change ...func(*Installer)) *Installer {
	t.Helper()
	c := Config{
		BinDir: n.bin, ConfDir: n.conf, Source: n.source, Entry: []byte(ourEntry), Versions: []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"},
		Notify: func(e Event) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.events = append(n.events, e)
		},
	}
	i, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	i.quietTime, i.pace.first, i.resync = 5*time.Millisecond, 10*time.Millisecond, time.Hour
	for _, f := range change {
		f(i)
	}
	return i
}

// start runs an installer until the test ends.
func (n *node) start(t *testing.T, i *Installer) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- i.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// count returns the number of events of a kind.
func (n *node) count(kind EventKind) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(n.events), func(e Event) bool { return e.Kind != kind }))
}

// lastError returns the error of the last event of a kind.
func (n *node) lastError(kind EventKind) (err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.events {
		if e.Kind == kind {
			err = e.Err
		}
	}
	return err
}

// put writes a file of the configuration directory as careful projects do: under another name, which is then changed.
func (n *node) put(t testing.TB, name, text string) {
	t.Helper()
	temp := filepath.Join(n.conf, name+".tmp")
	n.write(t, temp, text)
	if err := os.Rename(temp, filepath.Join(n.conf, name)); err != nil {
		t.Fatal(err)
	}
}

func (n *node) write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (n *node) get(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(n.conf, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// tree is the configuration directory: names, kinds, permission bits and contents. Go's globs see hidden files, too.
func (n *node) tree(t testing.TB) map[string]string {
	t.Helper()
	tree := map[string]string{}
	paths, err := filepath.Glob(filepath.Join(n.conf, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(paths, n.conf) {
		info, err := os.Lstat(path)
		var data []byte
		if err == nil && info.Mode().IsRegular() {
			data, err = os.ReadFile(path)
		}
		if errors.Is(err, fs.ErrNotExist) { // a file that was renamed meanwhile
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		tree[path] = info.Mode().String()
		if info.Mode().IsRegular() {
			tree[path] += "\n" + string(data)
		}
	}
	return tree
}

// asNobody runs f on a thread without root's right to write to any file.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		f()
		return
	}
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Setfsuid(65534)
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("timed out: %s", what)
		case <-tick.C:
		}
	}
}
