package install

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReplace_fileChanged_isRefused(t *testing.T) {
	n := newNode(t)
	file := filepath.Join(n.conf, "f")
	if err := replace(file, []byte("was"), []byte("now")); !errors.Is(err, errChanged) {
		t.Errorf("a file that vanished: %v", err)
	}
	n.write(t, file, "newer")
	if err := replace(file, []byte("was"), []byte("now")); !errors.Is(err, errChanged) {
		t.Errorf("a file that was written: %v", err)
	}
	if err := replacePlainly(file, file, []byte("was")); !errors.Is(err, errChanged) {
		t.Errorf("without swapping: %v", err)
	}
	if err := replacePlainly(file, file+"-gone", []byte("was")); !errors.Is(err, errChanged) {
		t.Errorf("without swapping, a file that vanished: %v", err)
	}
	want := map[string]string{n.conf: "drwxr-xr-x", file: "-rw-r--r--\nnewer"}
	if diff := cmp.Diff(want, n.tree(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func TestReplacePlainly_fileUnchanged_isReplaced(t *testing.T) {
	n := newNode(t)
	n.write(t, filepath.Join(n.conf, "f"), "was")
	n.write(t, filepath.Join(n.conf, "temp"), "now")
	if err := replacePlainly(filepath.Join(n.conf, "temp"), filepath.Join(n.conf, "f"), []byte("was")); err != nil || n.get(t, "f") != "now" {
		t.Errorf("%v, holds %q", err, n.get(t, "f"))
	}
}

// Another project writes the file as fast as it can while we edit it. Its last version must be there at the end.
func TestReplace_foreignWrites_areKept(t *testing.T) {
	const last = 3000
	n := newNode(t)
	version := func(v int) string { return strings.Replace(plain, "cni0", fmt.Sprintf("cni%d", v), 1) }
	n.put(t, "f.conflist", version(0))
	var writer sync.WaitGroup
	done := make(chan struct{})
	writer.Go(func() {
		defer close(done)
		for v := 1; v <= last; v++ {
			n.put(t, "f.conflist", version(v))
		}
	})
	edits, lost := 0, 0
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		net, err := load(filepath.Join(n.conf, "f.conflist"))
		if err != nil {
			t.Fatal(err)
		}
		text := net.withEntry(entry{"istio-pod-network-cni", []byte(ourEntry)})
		switch err := replace(net.path, net.data, text); {
		case errors.Is(err, errChanged):
			lost++
		case err != nil:
			t.Fatal(err)
		default:
			edits++
		}
	}
	writer.Wait()
	t.Logf("%d edits made, %d given up because the file was newer", edits, lost)
	if got := n.get(t, "f.conflist"); !strings.Contains(got, fmt.Sprintf(`"cni%d"`, last)) {
		t.Errorf("the last version is lost:\n%s", got)
	}
}

// A runtime must find a network at every moment: a list is never half-written.
func TestInstall_anyMoment_listIsWhole(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-kc.conflist", plain)
	stop := checkUntilStopped(t, func() error {
		_, err := find(n.conf)
		return err
	})
	for range 50 {
		i := n.installer(t)
		if err := errors.Join(i.Install(t.Context()), i.Uninstall()); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d checks", stop())
	if n.get(t, "10-kc.conflist") != plain {
		t.Errorf("after 50 rounds:\n%s", n.get(t, "10-kc.conflist"))
	}
}

// checkUntilStopped calls check without a pause until stop is called, which returns the number of calls.
func checkUntilStopped(t *testing.T, check func() error) (stop func() int) {
	t.Helper()
	done, checks := make(chan struct{}), 0
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			checks++
			if err := check(); err != nil {
				t.Error(err)
			}
		}
	})
	return func() int {
		close(done)
		reader.Wait()
		return checks
	}
}

func TestInstall_oldTemporaryFile_isRemoved(t *testing.T) {
	n := newNode(t)
	n.put(t, "10-kc.conflist", plain)
	old, fresh := filepath.Join(n.conf, ".istio-pod-network-cni-1.tmp"), filepath.Join(n.conf, ".istio-pod-network-cni-2.tmp")
	n.write(t, old, "half")
	n.write(t, fresh, "another installer is at work")
	if err := os.Chtimes(old, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := n.installer(t).Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("the old one is still there")
	}
	if _, err := os.Stat(fresh); err != nil {
		t.Error(err)
	}
}
