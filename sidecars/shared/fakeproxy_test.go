package shared

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/internal/sidecar"
)

// first calls a hook.
func (n *fakeNode) first(ctx context.Context, hook *func(context.Context) error) error {
	n.mu.Lock()
	f := *hook
	n.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(ctx)
}

// Find, Check and Signal reach the proxy.
func (n *fakeNode) Find(ctx context.Context, _ string) (out []sidecar.Container, err error) {
	if err := n.first(ctx, &n.finding); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.container != "" {
		out = append(out, sidecar.Container{ID: n.container, Image: "localhost/proxy:1", Labels: sidecar.Labels{PodUID: proxyPod}})
	}
	if n.newer != nil {
		out = append(out, sidecar.Container{ID: "container-newer", Image: "localhost/proxy:2", Labels: sidecar.Labels{PodUID: newerPod}})
	}
	if len(out) == 0 {
		return nil, sidecar.ErrGone
	}
	return out, nil
}

func (n *fakeNode) Check(ctx context.Context, id string, _ []string) (string, bool, error) {
	if err := n.first(ctx, &n.checking); err != nil {
		return "", false, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if id != n.container {
		return "", false, errors.New("no such container")
	}
	n.checks++
	if _, _, err := n.parse("next"); err != nil {
		return err.Error(), false, nil
	}
	return "", true, nil
}

func (n *fakeNode) Signal(ctx context.Context, id string, s unix.Signal) error {
	if err := n.first(ctx, &n.telling); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if id != n.container || s != unix.SIGUSR2 {
		return errors.New("no such container, or another signal")
	}
	n.reloads++
	if since := time.Since(n.told); since < reloadPause-50*time.Millisecond {
		n.broken = append(n.broken, "two reloads within "+since.String())
	}
	if _, pods, _ := n.parse("current"); len(pods) > 0 {
		n.told = time.Now()
	}
	n.loadFiles()
	return nil
}

// loadFiles puts current into force, if it can be used.
func (n *fakeNode) loadFiles() {
	version, pods, err := n.parse("current")
	if err != nil || n.deaf(strings.Join(pods, " ")) {
		return
	}
	if n.late == 0 {
		n.use(version, pods)
		return
	}
	of := n.container
	time.AfterFunc(n.late, func() {
		n.change(func() {
			if n.container == of {
				n.use(version, pods)
			}
		})
	})
}

// use puts a configuration into force.
func (n *fakeNode) use(version string, pods []string) {
	for _, name := range n.always {
		if !slices.Contains(pods, "ns-"+name) {
			n.broken = append(n.broken, "the proxy does not serve "+name+" any more")
		}
	}
	for _, p := range pods {
		for _, other := range n.pods {
			if filepath.Base(other.sandbox.NetNS) == p && other.taken && !slices.Contains(n.serving, p) {
				n.broken = append(n.broken, "the proxy listens in "+p+", where another process has its port")
			}
		}
	}
	n.version, n.serving = version, pods
}

// parse reads files as the proxy does.
func (n *fakeNode) parse(link string) (version string, pods []string, err error) {
	text, err := os.ReadFile(filepath.Join(n.root, "edge", "files", link, configFile))
	if err != nil {
		return "", nil, err
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case slices.Contains(words, "refused"), n.refuses != "" && slices.Contains(words, n.refuses):
			return "", nil, fmt.Errorf("\x1b[31mcannot use %q", line)
		case words[0] == "version":
			version = words[1]
		case words[0] == "pod" && !n.isNamed(words[1]):
			return "", nil, fmt.Errorf("no network namespace %s", words[1])
		case words[0] == "pod":
			pods = append(pods, words[1])
		}
	}
	return version, pods, nil
}

// startProxy starts the container. It reports whether the proxy could start: it cannot if its files cannot be used.
func (n *fakeNode) startProxy() bool {
	n.t.Helper()
	run := filepath.Join(n.root, "edge", "run", proxyPod)
	if err := os.MkdirAll(run, 0o700); err != nil {
		n.t.Fatal(err)
	}
	_ = os.Remove(filepath.Join(run, versionName))
	listener, err := net.Listen("unix", filepath.Join(run, versionName))
	if err != nil {
		n.t.Fatal(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, _, err := n.parse("current"); err != nil && !errors.Is(err, os.ErrNotExist) {
		_ = listener.Close()
		return false
	}
	n.made++
	n.container, n.ended = fmt.Sprintf("container-%d", n.made), make(chan struct{})
	n.loadFiles()
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.version == "" || n.mute {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte(n.version + "\n"))
	})}
	n.server = server
	go func() { _ = server.Serve(listener) }()
	return true
}

// stopProxy ends the container.
func (n *fakeNode) stopProxy() {
	n.mu.Lock()
	server := n.server
	if n.container != "" {
		close(n.ended)
	}
	n.container, n.version, n.serving, n.server = "", "", nil, nil
	n.mu.Unlock()
	if server != nil {
		_ = server.Close()
	}
}

func (n *fakeNode) Wait(ctx context.Context, id string) error {
	n.mu.Lock()
	ended := n.ended
	is := id == n.container
	n.waits++
	n.mu.Unlock()
	if !is {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-ended:
		return nil
	}
}
