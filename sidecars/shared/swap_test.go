package shared

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/test/kerneltest"
)

// swapTime is how long the agent works beside a proxy that swaps.
const swapTime = 3 * time.Second

// swapper swaps what is in the directory that a shared proxy can write to, until the test ends.
type swapper struct {
	run, outside string
	stop         chan struct{}
	all          sync.WaitGroup
}

// swap has a name become one thing after the other, each by one exchange. become makes it at a path beside.
func (s *swapper) swap(name string, become ...func(at string) error) {
	side := name + ".side"
	s.all.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-s.stop:
				return
			case <-time.After(50 * time.Microsecond):
			}
			_ = os.RemoveAll(side)
			_ = become[i%len(become)](side)
			if unix.Renameat2(unix.AT_FDCWD, side, unix.AT_FDCWD, name, unix.RENAME_EXCHANGE) != nil {
				_ = os.Rename(side, name)
			}
		}
	})
}

func (s *swapper) link(to string) func(at string) error {
	return func(at string) error { return os.Symlink(filepath.Join(s.outside, to), at) }
}

// pod is the directory of a proxy's pod, as old as one that is swept.
func (s *swapper) pod(at string) error {
	old := time.Now().Add(-2 * forgotten)
	return errors.Join(os.Mkdir(at, 0o700), os.Symlink(s.outside+"/socket", filepath.Join(at, versionName)), os.Chtimes(at, old, old))
}

func (s *swapper) socket(at string) error {
	l, err := net.Listen("unix", at)
	if err != nil {
		return err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	time.AfterFunc(100*time.Millisecond, func() { _ = l.Close() })
	return nil
}

// outsideOf makes a directory that the agent may not be led to. entered counts the connections to its socket.
func outsideOf(t *testing.T) (dir string, entered *atomic.Int64) {
	t.Helper()
	dir, err := os.MkdirTemp("", "outside") //nolint:usetesting // its names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := errors.Join(os.WriteFile(dir+"/file", []byte("node"), 0o600), os.Mkdir(dir+"/sub", 0o700), os.WriteFile(dir+"/sub/file", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	return dir, kerneltest.CountConnections(t, dir+"/socket")
}

// listed is what is in a directory.
func listed(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, e fs.DirEntry, err error) error {
		if err == nil {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				lines = append(lines, path+" "+info.Mode().String()+" "+info.ModTime().String())
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// A shared proxy that swaps what is in its directory while the agent marks, asks and sweeps there leads it nowhere.
func TestDirectory_proxySwapsPaths_agentIsLedNowhere(t *testing.T) {
	outside, entered := outsideOf(t)
	d := newDirectory(t.TempDir(), "edge")
	if err := d.prepare(); err != nil {
		t.Fatal(err)
	}
	s := &swapper{run: d.run(), outside: outside, stop: make(chan struct{})}
	before := listed(t, outside)
	stays := filepath.Join(s.run, "stays")
	if err := os.Mkdir(stays, 0o700); err != nil {
		t.Fatal(err)
	}
	s.swap(filepath.Join(s.run, "goes"), s.pod, s.link("."), s.pod, s.link("sub"))
	s.swap(filepath.Join(stays, servingName), s.link("made"), s.link("file"))
	s.swap(filepath.Join(stays, versionName), s.link("socket"), s.socket)
	did, lured := map[string]int{}, 0
	for began := time.Now(); time.Since(began) < swapTime; {
		for _, pod := range []string{"goes", "stays"} {
			use(t, d, pod, did)
		}
		if there, err := os.Stat(filepath.Join(s.run, "goes/file")); err == nil && there.Mode().IsRegular() {
			lured++
		}
	}
	close(s.stop)
	s.all.Wait()
	t.Logf("%v; a program that trusts the path was led outside %d times", did, lured)
	if lured == 0 || did["opened"] == 0 || did["marked"] == 0 || did["swept"] == 0 {
		t.Errorf("the test shows nothing: %v, led outside %d times", did, lured)
	}
	if after := listed(t, outside); after != before || entered.Load() > 0 {
		t.Errorf("outside there is now, after %d connections:\n%s\nwant:\n%s", entered.Load(), after, before)
	}
}

// use does to a pod's part of the directory what agents do, and counts what succeeds.
func use(t *testing.T, d directory, pod string, did map[string]int) {
	t.Helper()
	for what, err := range map[string]error{"opened": openOwn(d, pod), "marked": d.mark(pod), "swept": d.sweep(nil)} {
		if err == nil {
			did[what]++
		}
	}
	if _, err := d.ask(t.Context(), pod); err == nil {
		t.Error("somebody has answered who never does")
	}
}

func openOwn(d directory, pod string) error {
	own, err := d.own(pod)
	if err != nil {
		return err
	}
	return own.Close()
}
