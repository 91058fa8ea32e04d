package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	dockerNode    = "docker-node"
	dockerMetrics = ":15179"
)

// dockerSpace is a node of its own name, of which only the Docker Engine and an agent are real: pods are bound to it by their
// maker, and this program does the work of a kubelet.
type dockerSpace struct {
	*space
	engine *engine
	links  int
}

func newDockerSpace(t *testing.T) *dockerSpace {
	t.Helper()
	s := newSpace(t, asked())
	d := &dockerSpace{space: s, engine: startEngine(t, s.cluster)}
	// Pods of a node that is not there are collected as garbage. Without labels no DaemonSet is meant for it.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: dockerNode}, Spec: corev1.NodeSpec{Unschedulable: true}}
	_, err := s.api.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		must(t, s.api.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), dockerNode, metav1.DeleteOptions{}))
	})
	d.startAgent(t)
	return d
}

// startAgent runs the agent's program on the node, in nobody's container. The kubelet that serves its pods there is another node's.
func (d *dockerSpace) startAgent(t *testing.T) {
	t.Helper()
	config, err := os.ReadFile(os.Getenv("KUBECONFIG"))
	must(t, err)
	file := filepath.Join(t.TempDir(), "kubeconfig") // the node has another /run
	must(t, os.WriteFile(file, config, 0o600))
	cmd := exec.Command("kc", "node", "--", "/usr/bin/env", "KUBECONFIG="+file, agentProgram(t), "run", "--node-name="+dockerNode,
		"--runtime=docker", "--runtime-endpoint=unix://"+engineSocket, "--backend="+backend(), "--select=either",
		"--pods-from=api", "--nri=off", "--cni=off", "--log-level=debug", "--verify-interval=2s", "--health-addr=0", "--metrics-addr="+dockerMetrics)
	var log lockedBuffer
	cmd.Stdout, cmd.Stderr = &log, &log
	must(t, cmd.Start())
	t.Cleanup(func() {
		must(t, cmd.Process.Signal(syscall.SIGTERM))
		if err := cmd.Wait(); err != nil {
			t.Errorf("the agent: %v", err)
		}
		if t.Failed() {
			t.Logf("the agent's log:\n%s", log.String())
		}
	})
}

// agentProgram is the agent's program as a file of the machine, which the node sees, too.
func agentProgram(t *testing.T) string {
	t.Helper()
	file, err := filepath.Abs("../../build/" + agentName)
	must(t, err)
	return file
}

// bind makes a pod of the node.
func (d *dockerSpace) bind(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	pod.Spec.NodeName = dockerNode
	made := d.create(t, pod)
	t.Cleanup(func() { d.deleteWithin(context.WithoutCancel(t.Context()), t, made.Name, 0) }) // there is no kubelet to do it
	return made
}

// touch has the agent look at a pod again.
func (d *dockerSpace) touch(t *testing.T, pod *corev1.Pod, value string) {
	t.Helper()
	d.annotate(t, pod.Name, map[string]any{keyExcludeOutbound: value})
}

// netns is a sandbox's network namespace as a path on the node.
func (c container) netns() string {
	if c.NetworkSettings.SandboxKey != "" {
		return c.NetworkSettings.SandboxKey
	}
	return fmt.Sprintf("/proc/%d/ns/net", c.State.Pid)
}

// onNode runs a program on the node, or in a namespace there.
func onNode(ctx context.Context, netns string, argv ...string) (string, error) {
	args := []string{"node", "--"}
	if netns != "" {
		args = append(args, "/usr/bin/nsenter", "--net="+netns)
	}
	out, err := exec.CommandContext(ctx, "kc", append(args, argv...)...).Output()
	return string(out), err
}

// connect gives a sandbox a link to the node, as a CNI plugin would.
func (d *dockerSpace) connect(t *testing.T, c container) (nodeIP, podIP string) {
	t.Helper()
	d.links++
	link := fmt.Sprintf("e2edocker%d", d.links)
	nodeIP, podIP = fmt.Sprintf("198.18.%d.1", d.links), fmt.Sprintf("198.18.%d.2", d.links)
	for _, step := range []struct{ netns, argv string }{
		{"", fmt.Sprintf("/bin/ip link add %s type veth peer name eth0 netns %d", link, c.State.Pid)},
		{"", "/bin/ip addr add " + nodeIP + "/30 dev " + link},
		{"", "/bin/ip link set up dev " + link},
		{c.netns(), "/bin/ip addr add " + podIP + "/30 dev eth0"},
		{c.netns(), "/bin/ip link set up dev eth0"},
		{c.netns(), "/bin/ip link set up dev lo"},
		{c.netns(), "/bin/ip route add default via " + nodeIP},
	} {
		out, err := onNode(t.Context(), step.netns, strings.Fields(step.argv)...)
		if err != nil {
			t.Fatalf("%s: %v: %s", step.argv, err, out)
		}
	}
	return nodeIP, podIP
}

// reaches gives the port at which a connection arrived that was made to host:port from a namespace: the proxy's, if it was
// redirected; "" if nobody answered.
func reaches(ctx context.Context, t *testing.T, netns, target string) string {
	t.Helper()
	program, err := exec.LookPath("testapp")
	must(t, err)
	out, err := onNode(ctx, netns, program, "get", "http://"+target+"/")
	if err != nil {
		return ""
	}
	local := decode[answer](t, out).Local
	return local[strings.LastIndex(local, ":")+1:]
}

// inSandbox wants a report that names a sandbox.
func inSandbox(c container) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		d, err := detailsOf(pod)
		if err == nil && d.Sandbox != c.ID {
			err = fmt.Errorf("details name sandbox %.12s, want %.12s", d.Sandbox, c.ID)
		}
		if err != nil {
			return err
		}
		return hasStatus(statusInitialized)(pod)
	}
}

// ensured is how often this node's agent came to a result.
func (d *dockerSpace) ensured(ctx context.Context, t *testing.T, result string) float64 {
	t.Helper()
	m, err := readMetricsAt(ctx, d.node.ip()+dockerMetrics)
	must(t, err)
	return m.ensured(result)
}

// lockedBuffer keeps what a program prints.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
