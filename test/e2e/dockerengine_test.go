package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Where the Engine of the test is on the node. Nothing of it is the machine's own.
const (
	engineRun    = "/run/e2e-docker"
	engineSocket = engineRun + "/docker.sock"
	engineCgroup = "istio-pod-network-controller-cluster/e2e-docker" // in the node's, so that it ends with the cluster at the latest
	engineImage  = "localhost/testapp:1"
)

// engine is a Docker Engine on the node that leaves networks and rules alone, as a kubelet with cri-dockerd wants it.
type engine struct {
	*cluster
	dir  string // its data
	http *http.Client
	cmd  *exec.Cmd
}

// startEngine starts dockerd, and ends it, with all that it made, with the test.
func startEngine(t *testing.T, c *cluster) *engine {
	t.Helper()
	if _, err := os.Stat("/usr/sbin/dockerd"); err != nil {
		t.Fatalf("%v: install Debian's docker.io; its service need not run", err)
	}
	socket := filepath.Join(c.node.NodeRoot, engineSocket)
	e := &engine{cluster: c, dir: t.TempDir(), http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}}
	must(t, os.WriteFile(filepath.Join(e.dir, "daemon.json"), []byte("{}"), 0o600))
	e.start(t)
	t.Cleanup(func() { e.wantNothingLeft(t) })
	t.Cleanup(e.http.CloseIdleConnections)
	t.Cleanup(func() { e.stop(t) })
	t.Cleanup(func() { e.removeAll(t) })
	e.importImage(t)
	return e
}

// start runs dockerd, whose containers outlive it.
func (e *engine) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(e.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	defer log.Close()
	// The PATH is Debian's: the cluster has a containerd and a runc of its own.
	e.cmd = exec.Command("kc", "node", "--", "/usr/bin/env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"dockerd", "--host=unix://"+engineSocket, "--pidfile="+engineRun+"/docker.pid", "--exec-root="+engineRun+"/exec",
		"--config-file="+e.dir+"/daemon.json", "--data-root="+e.dir+"/data", "--storage-driver=vfs", "--cgroup-parent=/"+engineCgroup,
		"--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false", "--live-restore", "--log-level=warn")
	e.cmd.Stdout, e.cmd.Stderr = log, log
	must(t, e.cmd.Start())
	eventually(t, "the Docker Engine", func(ctx context.Context) error { return e.call(ctx, http.MethodGet, "/_ping", nil, nil) })
}

func (e *engine) stop(t *testing.T) {
	t.Helper()
	must(t, e.cmd.Process.Signal(syscall.SIGTERM))
	if err := e.cmd.Wait(); err != nil {
		t.Errorf("dockerd: %v", err)
	}
	if t.Failed() {
		log, err := os.ReadFile(filepath.Join(e.dir, "log"))
		t.Logf("dockerd's log (%v):\n%s", err, log)
	}
}

// wantNothingLeft takes away what dockerd leaves on purpose, and looks for more.
func (e *engine) wantNothingLeft(t *testing.T) {
	t.Helper()
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", e.node.NodePID))
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		switch point := fields[4]; {
		case strings.HasPrefix(point, engineRun+"/exec/netns"): // kept for the next start
			out, err := exec.Command("kc", "node", "--", "umount", point).CombinedOutput()
			if err != nil {
				t.Errorf("unmount %s: %v: %s", point, err, out)
			}
		case strings.HasPrefix(point, engineRun), strings.HasPrefix(point, e.dir):
			t.Errorf("dockerd has left a mount: %s", line)
		}
	}
	must(t, os.RemoveAll(filepath.Join(e.node.NodeRoot, engineRun)))
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + engineCgroup)
	must(t, err)
	for _, group := range append(groups, "/sys/fs/cgroup/"+engineCgroup) {
		if err := os.Remove(group); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a container's control group is left: %v", err)
		}
	}
	programs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, file := range programs {
		if line, err := os.ReadFile(file); err == nil && strings.Contains(string(line), engineRun) {
			t.Errorf("a process is left: %s %q", file, line)
		}
	}
}

// call makes a request of the Engine's API and reads the answer.
func (e *engine) call(ctx context.Context, method, path string, body, into any) error {
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case io.Reader:
		reader = b
	default:
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, reader)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}

// importImage makes an image of one static program.
func (e *engine) importImage(t *testing.T) {
	t.Helper()
	file, err := exec.LookPath("testapp")
	must(t, err)
	program, err := os.ReadFile(file)
	must(t, err)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	must(t, w.WriteHeader(&tar.Header{Name: "testapp", Mode: 0o755, Size: int64(len(program))}))
	_, err = w.Write(program)
	must(t, errors.Join(err, w.Close()))
	must(t, e.call(t.Context(), http.MethodPost, "/images/create?fromSrc=-&repo=localhost/testapp&tag=1", &archive, nil))
}

// container is what the tests need of an inspection.
type container struct {
	ID              string `json:"Id"`
	State           struct{ Pid int }
	NetworkSettings struct{ SandboxKey string }
}

// claim is what a container's labels and name say of a pod.
type claim struct {
	namespace, name, uid string
	attempt              int
}

func claimOf(pod *corev1.Pod, attempt int) claim {
	return claim{namespace: pod.Namespace, name: pod.Name, uid: string(pod.UID), attempt: attempt}
}

// runSandbox starts what cri-dockerd starts for a pod: a container that does nothing, whose network the others join.
func (e *engine) runSandbox(t *testing.T, of claim, network string) container {
	t.Helper()
	return e.runAs(t, of, "POD", network, "podsandbox", "serve", "-http=")
}

// runApp starts an application's container in a sandbox.
func (e *engine) runApp(t *testing.T, of claim, in container, args ...string) container {
	t.Helper()
	return e.runAs(t, of, "app", "container:"+in.ID, "container", args...)
}

func (e *engine) runAs(t *testing.T, of claim, name, network, kind string, args ...string) container {
	t.Helper()
	spec := map[string]any{
		"Image": engineImage, "Entrypoint": []string{"/testapp"}, "Cmd": args,
		"HostConfig": map[string]any{"NetworkMode": network},
		"Labels": map[string]string{
			"io.kubernetes.pod.namespace": of.namespace, "io.kubernetes.pod.name": of.name, "io.kubernetes.pod.uid": of.uid,
			"io.kubernetes.container.name": name, "io.kubernetes.docker.type": kind,
		},
	}
	query := url.Values{"name": {strings.Join([]string{"k8s", name, of.name, of.namespace, of.uid, strconv.Itoa(of.attempt)}, "_")}}
	var c container
	must(t, e.call(t.Context(), http.MethodPost, "/containers/create?"+query.Encode(), spec, &c))
	must(t, e.call(t.Context(), http.MethodPost, "/containers/"+c.ID+"/start", nil, nil))
	must(t, e.call(t.Context(), http.MethodGet, "/containers/"+c.ID+"/json", nil, &c))
	return c
}

func (e *engine) remove(ctx context.Context, t *testing.T, id string) {
	t.Helper()
	must(t, e.call(ctx, http.MethodDelete, "/containers/"+id+"?force=1", nil, nil))
}

func (e *engine) removeAll(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var all []struct {
		ID string `json:"Id"`
	}
	must(t, e.call(ctx, http.MethodGet, "/containers/json?all=1", nil, &all))
	for _, c := range all {
		e.remove(ctx, t, c.ID)
	}
}
