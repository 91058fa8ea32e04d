package netns_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/test/kerneltest"
)

func TestOpenRefusesWhatIsNoNetworkNamespace(t *testing.T) {
	dir := t.TempDir()
	file, fifo, sock := filepath.Join(dir, "file"), filepath.Join(dir, "fifo"), filepath.Join(dir, "sock")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cases := map[string]struct {
		path string
		want string
		gone bool
	}{
		"a plain file":           {path: file, want: "not a network namespace"},
		"a directory":            {path: dir, want: "not a network namespace"},
		"a FIFO":                 {path: fifo, want: "not a network namespace"},
		"a socket":               {path: sock, want: "no such device"},
		"a mount namespace":      {path: "/proc/self/ns/mnt", want: "of type"},
		"a missing file":         {path: filepath.Join(dir, "missing"), gone: true},
		"below a file":           {path: filepath.Join(file, "x"), gone: true},
		"a process that is gone": {path: "/proc/4194304/ns/net", gone: true},
		"nothing":                {path: "", gone: true},
		"a NUL in the path":      {path: "/run/netns/a\x00b", want: "invalid argument"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n, err := netns.Open(c.path)
			if err == nil {
				t.Fatalf("opened %v", n.ID())
			}
			if errors.Is(err, podnet.ErrGone) != c.gone || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: want gone %v and %q", err, c.gone, c.want)
			}
		})
	}
}

func TestGuardRefusesTheHostByAnyPath(t *testing.T) {
	guard := kerneltest.Guard(t)
	link := filepath.Join(t.TempDir(), "pod")
	if err := os.Symlink("/proc/self/ns/net", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/proc/self/ns/net", "/proc/thread-self/ns/net", link} {
		if _, err := guard.Open(path); !errors.Is(err, netns.ErrHost) || !guard.IsHost(path) {
			t.Errorf("%s: %v, host %v", path, err, guard.IsHost(path))
		}
	}
	ns := kerneltest.New(t)
	opened, err := guard.Open(ns.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if guard.IsHost(ns.Path()) || guard.IsHost(link+"-that-is-not-there") {
		t.Error("what is not the host's is taken for it")
	}
	if opened.ID() != ns.ID() {
		t.Errorf("one namespace has two identities: %v, %v", opened.ID(), ns.ID())
	}
	var ignorant netns.Guard
	if _, err := ignorant.Open(ns.Path()); err == nil {
		t.Error("a guard that does not know the host's namespace opened one")
	}
}

// Whatever happens inside, no other goroutine may find itself in a pod's namespace afterwards.
func TestDoLeavesEveryOtherThreadWhereItWas(t *testing.T) {
	host, err := netns.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	ns := kerneltest.New(t)
	for range 50 {
		err := ns.Inside(func() error {
			inside, err := netns.Open("/proc/thread-self/ns/net")
			if err != nil {
				return err
			}
			if inside.ID() != ns.ID() {
				t.Errorf("inside is %v, want %v", inside.ID(), ns.ID())
			}
			return errors.Join(inside.Close(), errors.New("as asked"))
		})
		if err == nil || !strings.Contains(err.Error(), "as asked") {
			t.Fatalf("the function's error was lost: %v", err)
		}
	}
	mustBeOutside(t, host)
}

// mustBeOutside has goroutines look where they are, on all threads there are.
func mustBeOutside(t *testing.T, host *netns.NS) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 * len(tasks) {
		got := make(chan netns.ID)
		go func() {
			n, err := netns.Open("/proc/thread-self/ns/net")
			if err != nil {
				t.Error(err)
				got <- netns.ID{}
				return
			}
			got <- n.ID()
			_ = n.Close()
		}()
		if id := <-got; id != host.ID() {
			t.Fatalf("a goroutine found itself in %v", id)
		}
	}
}
