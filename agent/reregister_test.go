package agent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/internal/podnet"
	"istio-pod-network-controller/runtime/kubelet"
	"istio-pod-network-controller/test/realruntimes"
	"istio-pod-network-controller/test/standins/kubeletstandin"
)

const (
	// registrations is how often the plugin registers while pods start, and startersAtOnce how many start at a time.
	registrations  = 200
	startersAtOnce = 4
	// Rules are there so long after the kubelet has reported that a pod's containers run, and if it reports nothing.
	boundReported, boundUnreported = 2 * time.Second, 12 * time.Second
)

// A runtime calls a plugin that registers while a pod starts not for every such pod (containerd/containerd#13698, cri-o/cri-o#10090). The pod has its rules
// within a bound nevertheless: the watch finds it by the kubelet's report, and without one by asking the runtime.
func TestContainerdPodsHaveRulesAlthoughThePluginRegisters(t *testing.T) {
	realruntimes.Containerds(t, func(t *testing.T, programs string) {
		d := realruntimes.StartContainerd(t, programs)
		d.Network(t)
		c := &churn{runtime: d, agent: newTestAgent(t, false)}
		c.kubelet = kubeletstandin.New(filepath.Join(filepath.Dir(c.agent.NRI.Socket), "pods.sock"))
		if err := c.kubelet.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.kubelet.Stop)
		finder, err := newFinder(t.Context(), "containerd", d.Endpoint())
		if err != nil {
			t.Fatal(err)
		}
		c.agent.finder, c.agent.backends = finder, allBackends(t)["nftables"]
		c.agent.PodsFrom, c.agent.KubeletSocket = string(kubelet.Kubelet), c.kubelet.Socket
		line := lead(t, c.agent.NRI.Socket, d.Path("nri.sock"))
		api := newPodAPI(t)
		api.serve(t, "list")
		c.agent.begin(t, "http://"+api.addr)
		c.agent.await(t, "the core", c.agent.core.isSet)
		c.agent.await(t, "NRI", func() bool { return c.agent.nriHook.Connected() })

		var starters sync.WaitGroup
		var over atomic.Bool
		defer starters.Wait()
		defer over.Store(true)
		for range startersAtOnce {
			starters.Go(func() {
				for !over.Load() {
					c.live(t)
				}
			})
		}
		for n := range registrations {
			if n%20 == 0 {
				t.Logf("%d registrations, %d pods", n, c.pods.Load())
			}
			before := c.pods.Load()
			within(t, "another pod starts", func() bool { return c.pods.Load() > before })
			line.cut(t)
			within(t, "the plugin is gone", func() bool { return !c.agent.nriHook.Connected() })
			within(t, "the plugin is registered", c.agent.nriHook.Connected)
		}
		over.Store(true)
		starters.Wait()
		c.report(t)
	})
}

// within waits for a condition, for as long as a runtime that starts pods at once may take.
func within(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick, end := time.NewTicker(time.Millisecond), time.After(5*time.Minute)
	defer tick.Stop()
	for !condition() {
		select {
		case <-end:
			t.Fatal("never: " + what)
		case <-tick.C:
		}
	}
}

// line leads from the socket that an agent knows to a runtime's, and can be cut.
type line struct {
	at, to   string
	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
}

func lead(t *testing.T, at, to string) *line {
	t.Helper()
	l := &line{at: at, to: to}
	l.listen(t)
	t.Cleanup(l.end)
	return l
}

func (l *line) listen(t *testing.T) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", l.at)
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	l.listener = listener
	l.mu.Unlock()
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", l.to)
			if err != nil {
				_ = near.Close()
				continue
			}
			l.mu.Lock()
			l.conns = append(l.conns, near, far)
			l.mu.Unlock()
			go io.Copy(near, far) //nolint:errcheck // it ends when it is cut
			go io.Copy(far, near) //nolint:errcheck // it ends when it is cut
		}
	}()
}

func (l *line) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.listener.Close()
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

// cut ends the connection, as a restart of the agent or of the runtime does. There is a new socket at once.
func (l *line) cut(t *testing.T) {
	t.Helper()
	l.end()
	l.listen(t)
}

// churn starts and ends pods, as a kubelet does.
type churn struct {
	runtime *realruntimes.Runtime
	agent   *testAgent
	kubelet *kubeletstandin.Kubelet
	pods    atomic.Int64

	mu                 sync.Mutex
	late, lateReported []time.Duration // how long pods that started without rules had none
}

// live starts a pod, waits for its rules, and ends it.
func (c *churn) live(t *testing.T) {
	t.Helper()
	n := c.pods.Add(1)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: fmt.Sprintf("churn-%d", n), UID: types.UID(fmt.Sprintf("uid-%d", n)), CreationTimestamp: metav1.Now(),
		Annotations: map[string]string{"istio-pod-network-controller/initialize": "true"},
	}, Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "app"}, {Name: "istio-proxy"}}}}
	c.kubelet.Put(pod)
	sandbox, container, err := c.start(t, pod)
	if err != nil {
		t.Errorf("pod %s does not start: %v", pod.Name, err)
		return
	}
	began, reported := time.Now(), n%2 == 0
	s, err := c.agent.finder.Find(t.Context(), podnet.Sandbox{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)})
	if err != nil {
		t.Errorf("pod %s has no sandbox: %v", pod.Name, err)
		return
	}
	if !c.hasRules(t, s) {
		if reported {
			c.kubelet.Put(running(pod))
		}
		for !c.hasRules(t, s) && time.Since(began) < 2*boundUnreported {
			<-time.After(5 * time.Millisecond)
		}
		c.note(time.Since(began), reported)
	}
	_, errStop := c.runtime.StopPodSandbox(t.Context(), &criv1.StopPodSandboxRequest{PodSandboxId: sandbox})
	_, errContainer := c.runtime.RemoveContainer(t.Context(), &criv1.RemoveContainerRequest{ContainerId: container})
	_, errRemove := c.runtime.RemovePodSandbox(t.Context(), &criv1.RemovePodSandboxRequest{PodSandboxId: sandbox})
	if err := errors.Join(errStop, errContainer, errRemove); err != nil {
		t.Error(err)
	}
	c.kubelet.End(pod, false)
}

// start makes a pod's sandbox and starts its container. A refusal while the agent is not there yet is tried again.
func (c *churn) start(t *testing.T, pod *corev1.Pod) (sandbox, container string, err error) {
	t.Helper()
	config := &criv1.PodSandboxConfig{
		Metadata: &criv1.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)},
		Labels:   map[string]string{"io.kubernetes.pod.name": pod.Name, "io.kubernetes.pod.namespace": pod.Namespace, "io.kubernetes.pod.uid": string(pod.UID)},
		Linux:    &criv1.LinuxPodSandboxConfig{CgroupParent: "/" + os.Getenv("CGROUP"), SecurityContext: &criv1.LinuxSandboxSecurityContext{}},
	}
	made, err := c.runtime.RunPodSandbox(t.Context(), &criv1.RunPodSandboxRequest{Config: config})
	if err != nil {
		return "", "", err
	}
	created, err := c.runtime.CreateContainer(t.Context(), &criv1.CreateContainerRequest{
		PodSandboxId: made.PodSandboxId, SandboxConfig: config, Config: &criv1.ContainerConfig{
			Metadata: &criv1.ContainerMetadata{Name: "app"}, Image: &criv1.ImageSpec{Image: realruntimes.PauseImage}, Linux: &criv1.LinuxContainerConfig{},
		},
	})
	if err != nil {
		return "", "", err
	}
	_, err = c.runtime.StartContainer(t.Context(), &criv1.StartContainerRequest{ContainerId: created.ContainerId})
	return made.PodSandboxId, created.ContainerId, err
}

// running is a pod as the kubelet reports it once its containers run.
func running(pod *corev1.Pod) *corev1.Pod {
	out := pod.DeepCopy()
	out.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.0.2", PodIPs: []corev1.PodIP{{IP: "10.244.0.2"}}}
	return out
}

func (c *churn) hasRules(t *testing.T, s podnet.Sandbox) bool {
	t.Helper()
	present, err := c.agent.backends.Present(t.Context(), s.Place())
	if err != nil {
		t.Error(err)
	}
	return present
}

func (c *churn) note(late time.Duration, reported bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reported {
		c.lateReported = append(c.lateReported, late)
	} else {
		c.late = append(c.late, late)
	}
}

// report compares with the bounds.
func (c *churn) report(t *testing.T) {
	t.Helper()
	t.Logf("%d pods over %d registrations: without rules at their start %d with a report of the kubelet, for %v, and %d without, for %v",
		c.pods.Load(), registrations, len(c.lateReported), c.lateReported, len(c.late), c.late)
	for bound, all := range map[time.Duration][]time.Duration{boundReported: c.lateReported, boundUnreported: c.late} {
		if len(all) > 0 && slices.Max(all) > bound {
			t.Errorf("a pod had no rules for %s, want at most %s", slices.Max(all), bound)
		}
	}
}
