package istio

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"istio-pod-network-controller/test/kerneltest"
)

// proxy is a pod's pilot-agent with its Envoy.
type proxy struct {
	pod      *meshPod
	cmd      *exec.Cmd
	ended    chan error
	admin    int // port of Envoy's administration
	statusAt string
}

// start starts a proxy: the second in a pod has other ports where they cannot be shared.
func (p *meshPod) start(t *testing.T, env ...string) *proxy {
	t.Helper()
	dir := filepath.Join(p.world.programs, fmt.Sprintf("%s-%d", p.name, p.proxies))
	p.world.ca.issue(t, filepath.Join(dir, "var/run/secrets/workload-spiffe-credentials"), p.name)
	for _, sub := range []string{"etc/istio/proxy", "var/lib/istio/data", "var/run/secrets/workload-spiffe-uds"} {
		mkdir(t, filepath.Join(dir, sub))
	}
	give(t, dir)
	labels, err := json.Marshal(p.labels)
	if err != nil {
		t.Fatal(err)
	}
	admin, status := 15000+100*p.proxies, 15020+100*p.proxies
	config, err := json.Marshal(map[string]any{
		"discoveryAddress": istiodAt, "controlPlaneAuthPolicy": "NONE", "binaryPath": filepath.Join(p.world.programs, "envoy"),
		"configPath": filepath.Join(dir, "etc/istio/proxy"), "proxyAdminPort": admin, "statusPort": status, "drainDuration": "3s",
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(p.world.programs, "pilot-agent"), "proxy", "sidecar", "--proxyLogLevel=info")
	cmd.Dir = dir
	cmd.Env = append([]string{
		"POD_NAME=" + p.name, "POD_NAMESPACE=default", "INSTANCE_IP=" + p.ip, "SERVICE_ACCOUNT=" + p.name, "ISTIO_META_CLUSTER_ID=Kubernetes",
		"TRUST_DOMAIN=cluster.local", "CREDENTIAL_FETCHER_TYPE=", "ISTIO_META_INTERCEPTION_MODE=REDIRECT", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true", "MINIMUM_DRAIN_DURATION=1s",
		"ISTIO_METAJSON_LABELS=" + string(labels),
		"PROXY_CONFIG=" + string(config), "ISTIO_BOOTSTRAP=" + filepath.Join(p.world.programs, "bootstrap.json"), "PATH=" + os.Getenv("PATH"),
	}, env...)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: 1337, Gid: 1337}}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	if err := p.ns.Inside(cmd.Start); err != nil {
		t.Fatal(err)
	}
	started := &proxy{pod: p, cmd: cmd, ended: make(chan error, 1), admin: admin, statusAt: fmt.Sprintf("%s:%d", p.ip, status)}
	go func() { started.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("%s says:\n%s", filepath.Base(dir), text)
		}
	})
	p.proxies++
	return started
}

// awaitReady waits until the agent says that its Envoy serves.
func (x *proxy) awaitReady(t *testing.T) {
	t.Helper()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (c net.Conn, err error) {
		errDo := x.pod.world.node.Inside(func() error { c, err = new(net.Dialer).DialContext(ctx, network, address); return err })
		if err == nil {
			err = errDo
		}
		return c, err
	}}}
	eventually(t, x.pod.name+" is ready", 60*time.Second, func() error {
		select {
		case err := <-x.ended:
			t.Fatalf("the proxy of %s has ended: %v", x.pod.name, err)
		default:
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+x.statusAt+"/healthz/ready", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(r)
		if err != nil {
			return err
		}
		defer response.Body.Close() //nolint:errcheck // not read
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", response.Status)
		}
		return nil
	})
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, limit time.Duration, condition func() error) {
	t.Helper()
	tick, end := time.NewTicker(50*time.Millisecond), time.After(limit)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("never: %s: %v", what, err)
		}
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // another user's
		t.Fatal(err)
	}
}

// give gives a directory to the proxies' user.
func give(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, kerneltest.Proxy.UID, kerneltest.Proxy.GID)
	})
	if err != nil {
		t.Fatal(err)
	}
}
