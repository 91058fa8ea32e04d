package kernel

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/iptables"
	"istio-pod-network-controller/test/kerneltest"
)

// hopTime is how long the backend works beside a process that changes namespaces.
const hopTime = 3 * time.Second

// hop has a thread go from one namespace to the next until the test ends, and returns the path in /proc that leads to where it is.
func hop(t *testing.T, among ...*netns.NS) (path string) {
	t.Helper()
	at, stop, ended := make(chan string, 1), make(chan struct{}), make(chan error, 1)
	go func() {
		goruntime.LockOSThread() // for ever: the thread ends with this goroutine
		at <- fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		for i := 0; ; i++ {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			if err := unix.Setns(among[i%len(among)].Fd(), unix.CLONE_NEWNET); err != nil {
				ended <- err
				return
			}
			<-time.After(time.Duration(i%7) * 100 * time.Microsecond)
		}
	}()
	t.Cleanup(func() {
		close(stop)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return <-at
}

// A path that leads to a process's namespace leads elsewhere whenever the process goes. Whatever moment it chooses, in the host's namespace and in that of
// another pod nothing is written.
func TestBackend_processHopsBetweenNamespaces_onlyItsOwnIsWritten(t *testing.T) {
	own, other, host := kerneltest.New(t), kerneltest.New(t), hostNamespace(t)
	c, err := NewChoice(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := iptables.Rules(iptables.DefaultSpec())
	if err != nil {
		t.Fatal(err)
	}
	before := hostTables(t)
	e, path := c.Nftables(t.Context()), hop(t, host, own, other)
	place := podnet.Place{Path: path}
	if place.Identity, err = own.Identity(); err != nil {
		t.Fatal(err)
	}
	did := map[string]int{}
	for began := time.Now(); time.Since(began) < hopTime; {
		_, errApply := e.Apply(t.Context(), place, want)
		_, errRemove := e.Remove(t.Context(), place)
		for what, err := range map[string]error{"applied": errApply, "removed": errRemove} {
			switch {
			case err == nil:
				did[what]++
			case errors.Is(err, netns.ErrHost):
				did["refused the host's"]++
			case errors.Is(err, podnet.ErrGone):
				did["refused another's"]++
			default:
				t.Fatal(err)
			}
		}
		if present, err := e.Present(t.Context(), podnet.Place{Path: other.Path()}); present || err != nil {
			t.Fatalf("another pod's namespace has rules: %t, %v", present, err)
		}
	}
	t.Logf("%v", did)
	if len(did) != 4 {
		t.Errorf("the test shows nothing: %v", did)
	}
	if after := hostTables(t); after != before {
		t.Errorf("the host has\n%s\nwant\n%s", after, before)
	}
}

// hostNamespace opens the test's own namespace.
func hostNamespace(t *testing.T) *netns.NS {
	t.Helper()
	ns, err := netns.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// hostTables lists what of ours is in the test's own namespace.
func hostTables(t *testing.T) (ours string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), kerneltest.ProgramPath(t, "nft"), "list", "tables").CombinedOutput()
	if err != nil {
		t.Fatalf("list tables: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, iptables.TableName) {
			ours += line
		}
	}
	return ours
}
