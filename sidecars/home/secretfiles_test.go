package home

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/podnet"
)

// homeFor returns a home of the test's own, in which it owns the proxies' files.
func homeFor(t *testing.T) (Home, Owner) {
	t.Helper()
	h, o := Homes{Root: t.TempDir()}.Of(podnet.Key{PodUID: "u", Sandbox: "s"}), Owner{int64(os.Getuid()), int64(os.Getgid())}
	if err := h.Prepare(o); err != nil {
		t.Fatal(err)
	}
	if err := makeDir(h.Epoch(0).Secrets(), o); err != nil {
		t.Fatal(err)
	}
	return h, o
}

func manyKeys(i int) map[string][]byte {
	out := map[string][]byte{}
	for k := range 4 {
		out[fmt.Sprint("key", k)] = []byte(strconv.Itoa(i))
	}
	return out
}

// A proxy that reads all the time finds each file at any time, and in what the link leads to only files of one version.
func TestReplace_reader_seesOneVersionWhole(t *testing.T) {
	const replacements, readings = 100, 10
	h, o := homeFor(t)
	d := secretDir{filepath.Join(h.Epoch(0).Secrets(), "tls"), o}
	if err := makeDir(d.path, o); err != nil {
		t.Fatal(err)
	}
	if err := d.replace(manyKeys(0), time.Now()); err != nil {
		t.Fatal(err)
	}
	var read atomic.Int32
	var proxy sync.WaitGroup
	end := make(chan struct{})
	proxy.Go(func() {
		for ; ; read.Add(1) {
			select {
			case <-end:
				return
			default:
				readsOneVersion(t, d.path)
			}
		}
	})
	last := 0
	for last < replacements || read.Load() < readings {
		last++
		if err := d.replace(manyKeys(last), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	close(end)
	proxy.Wait()
	if err := d.prune(); err != nil || !d.holds(manyKeys(last)) {
		t.Errorf("the last version is not there whole; error %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(d.path, versionPrefix+"*")); err != nil || len(left) != 1 {
		t.Errorf("versions %v, error %v", left, err)
	}
}

// readsOneVersion reads as proxies do: file by file, and through a directory that is opened once.
func readsOneVersion(t *testing.T, path string) {
	t.Helper()
	if _, err := os.ReadFile(filepath.Join(path, "key0")); err != nil {
		t.Error(err)
	}
	root, err := os.OpenRoot(filepath.Join(path, dataLink))
	if err != nil {
		t.Error(err)
		return
	}
	defer root.Close()
	found := map[string]bool{}
	for key := range manyKeys(0) {
		content, err := root.ReadFile(key)
		if err != nil {
			t.Error(err)
		}
		found[string(content)] = true
	}
	if len(found) != 1 {
		t.Errorf("a mixture of versions: %v", found)
	}
}

// What an agent left that was killed between any two steps is put right by the next replacement.
func TestReplace_agentKilled_nextOneFinishes(t *testing.T) {
	h, o := homeFor(t)
	d := secretDir{filepath.Join(h.Epoch(0).Secrets(), "tls"), o}
	dir := filepath.Join(d.path, versionPrefix+"1")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "half"), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(d.path, nextLink)); err != nil {
		t.Fatal(err)
	}
	if d.holds(manyKeys(1)) || d.holds(nil) {
		t.Error("a version is taken for whole that nothing leads to")
	}
	if err := d.replace(manyKeys(1), time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := d.prune(); err != nil || !d.holds(manyKeys(1)) {
		t.Errorf("not whole; error %v", err)
	}
	entries, err := os.ReadDir(d.path)
	if err != nil || len(entries) != 1+1+len(manyKeys(1)) { // the link, its version, a link for each file
		t.Errorf("there is %v, error %v", entries, err)
	}
}

func TestHolds_files_areCompared(t *testing.T) {
	h, o := homeFor(t)
	d := secretDir{filepath.Join(h.Epoch(0).Secrets(), "tls"), o}
	if err := makeDir(d.path, o); err != nil {
		t.Fatal(err)
	}
	if err := d.replace(manyKeys(1), time.Now()); err != nil {
		t.Fatal(err)
	}
	less, more, renamed := manyKeys(1), manyKeys(1), manyKeys(1)
	delete(less, "key0")
	delete(renamed, "key0")
	more["key4"], renamed["key5"] = []byte("1"), []byte("1")
	for name, c := range map[string]struct {
		files map[string][]byte
		want  bool
	}{
		"the same": {manyKeys(1), true}, "other values": {manyKeys(2), false}, "a key less": {less, false}, "a key more": {more, false},
		"a key renamed": {renamed, false}, "nothing": {map[string][]byte{}, false},
	} {
		if got := d.holds(maps.Clone(c.files)); got != c.want {
			t.Errorf("%s: holds: %t, want %t", name, got, c.want)
		}
	}
}

// Where SELinux enforces, a proxy reads what the agent shows it later only with the label that the runtime has given to its directories.
func TestReplace_labelledDirectory_labelsAllThatIsNew(t *testing.T) {
	const label = "system_u:object_r:container_file_t:s0:c1,c2\x00"
	h, o := homeFor(t)
	d := secretDir{filepath.Join(h.Epoch(0).Secrets(), "tls"), o}
	if err := makeDir(d.path, o); err != nil {
		t.Fatal(err)
	}
	if err := unix.Lsetxattr(d.path, labelName, []byte(label), 0); err != nil {
		t.Skipf("only root may label files where SELinux is off, and nobody may as here where it is on: %v", err)
	}
	if err := d.replace(manyKeys(0), time.Now()); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(d.path, func(path string, _ os.DirEntry, err error) error {
		if got, errLabel := labelOf(path); err != nil || errLabel != nil || string(got) != label {
			t.Errorf("%s has the label %q (%v), not %q", path, got, errors.Join(err, errLabel), label)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := labelOf(filepath.Dir(d.path)); got != nil || err != nil {
		t.Errorf("what is above has the label %q: %v", got, err)
	}
}
