package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/netns"
	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/runtime/cni"
	"istio-pod-network-controller/test/kerneltest"
)

// serveChain runs the CNI socket in front of the real nftables backend, and gives its path. The one pod asks for redirection.
func serveChain(t *testing.T) (socket string) {
	t.Helper()
	c := newTestCNIHook(t, nil, "true", nil)
	b, programmer := allBackends(t)["nftables"], c.core.core.Load().programmer
	programmer.Backend, programmer.Namespaces, programmer.Finder = b, b, emptyRuntime{}
	dir, err := os.MkdirTemp("", "cni") //nolint:usetesting // its names are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	server, err := cni.NewServer(cni.Config{Path: socket, Handler: c, Ready: func(context.Context) error { return nil }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	kerneltest.Eventually(t, "the socket is there", func() bool { return server.Check() == nil })
	return socket
}

// emptyRuntime has no sandboxes.
type emptyRuntime struct{}

// Find finds nothing.
func (emptyRuntime) Find(context.Context, podnet.Sandbox) (podnet.Sandbox, error) {
	return podnet.Sandbox{}, errors.New("the runtime has no such sandbox")
}

// addOf is what the chained plugin does for ADD, in this process: the exit code, and the error that the kubelet shows.
func addOf(t *testing.T, socket, path string) (code int, says string) {
	t.Helper()
	t.Setenv("CNI_COMMAND", "ADD")
	t.Setenv("CNI_CONTAINERID", "8f5e")
	t.Setenv("CNI_NETNS", path)
	t.Setenv("CNI_IFNAME", "eth0")
	t.Setenv("CNI_PATH", "/opt/cni/bin")
	t.Setenv("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart;K8S_POD_UID=u-1")
	conf := `{"cniVersion":"1.0.0","name":"kc","type":"istio-pod-network-cni","socket":"` + socket + `","prevResult":{"cniVersion":"1.0.0"}}`
	stdin, out := pipe(t, conf), filepath.Join(t.TempDir(), "out")
	file, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	wasIn, wasOut := os.Stdin, os.Stdout
	os.Stdin, os.Stdout = stdin, file
	code = cni.Main(t.Context(), file, file)
	os.Stdin, os.Stdout = wasIn, wasOut
	text, err := os.ReadFile(out)
	if err := errors.Join(err, file.Close(), stdin.Close()); err != nil {
		t.Fatal(err)
	}
	return code, string(text)
}

func pipe(t *testing.T, text string) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.WriteString(text)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return r
}

// bind mounts the host's namespace on a file, as runtimes do with those of pods.
func bind(t *testing.T, at string) {
	t.Helper()
	if err := os.WriteFile(at, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/proc/self/ns/net", at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// Whatever path the chain names, the pod does not start, and nothing is written to the host's namespace.
func TestNetworkNamespacesThatAreNoPodsFailClosed(t *testing.T) {
	pod, _ := kerneltest.NewPod(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	bind(t, at("bound"))
	process := fmt.Sprintf("/proc/%d/ns/", os.Getpid()) // the first process's needs a right that not every machine gives its root
	err := errors.Join(
		os.Symlink(process+"net", at("planted")), os.Symlink(at("bound"), at("planted-twice")), os.Symlink(at("loop"), at("loop")),
		os.WriteFile(at("file"), nil, 0o600), syscall.Mkfifo(at("fifo"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	socket := serveChain(t)
	if code, says := addOf(t, socket, pod.Path()); code != 0 {
		t.Fatalf("a pod's own namespace: exit %d, %s", code, says)
	}
	for name, c := range map[string]struct{ path, says string }{
		"the host's, by a process":              {process + "net", "the runtime has no such sandbox"}, // it is asked, and the path not opened
		"the host's, bind mounted":              {at("bound"), "host's own"},
		"a link to the host's":                  {at("planted"), "host's own"},
		"a link to a bind mount of the host's":  {at("planted-twice"), "host's own"},
		"a link to itself":                      {at("loop"), "too many levels"},
		"the plugin's own":                      {"/proc/self/ns/net", "each process"},
		"a descriptor":                          {"/proc/self/fd/0", "each process"},
		"standard input":                        {"/dev/stdin", "each process"},
		"no path":                               {"", "CNI_NETNS"},
		"a relative path":                       {"run/netns/x", "absolute path"},
		"a path by detours":                     {"/run/netns/../../proc/1/ns/net", "absolute path"},
		"a plain file":                          {at("file"), "network namespace"},
		"a pipe that nobody writes to":          {at("fifo"), "network namespace"},
		"another kind of namespace":             {process + "uts", "not a network namespace"},
		"nothing":                               {at("nothing"), "gone"},
		"a directory":                           {dir, "namespace"},
		"a path of more than the kernel allows": {"/" + strings.Repeat("a/", 3000) + "b", "absolute path"},
	} {
		t.Run(name, func(t *testing.T) {
			code, says := addOf(t, socket, c.path)
			if code == 0 || !strings.Contains(says, c.says) {
				t.Errorf("exit %d, says %q, want %q", code, says, c.says)
			}
		})
	}
	wantHostUntouched(t)
}

func wantHostUntouched(t *testing.T) {
	t.Helper()
	present, err := allBackends(t)["nftables"].Present(t.Context(), podnet.Place{Path: "/proc/self/ns/net"})
	if !errors.Is(err, netns.ErrHost) {
		t.Errorf("the guard opens the host's namespace: %t, %v", present, err)
	}
}
