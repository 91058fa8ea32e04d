package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// proxyStarts, proxyUpgrades and plainPods are how many are measured.
const (
	proxyStarts   = 40
	proxyUpgrades = 20
	plainPods     = 20
)

// measureSidecars tells how fast the proxy manager is, and what a proxy takes of the node beside its process.
func measureSidecars(b *testing.B) []row {
	b.Helper()
	return append(measureProxyStarts(b), measureExtras(b)...)
}

// measureProxyStarts starts pods one after the other, and then upgrades the proxy of one again and again.
func measureProxyStarts(b *testing.B) []row {
	b.Helper()
	m := newManaged(b)
	w := m.watchProxies(b)
	var made, conditioned, reported, crashed []float64
	for i := range few(proxyStarts) {
		name := fmt.Sprintf("managed-%d", i)
		pod := m.startManaged(b, plainPod(name))
		at := w.await(b, name, "sandbox", managedProxy, "condition", "ManagedProxy 0")
		since := func(what string) float64 { return milliseconds(at[what].Sub(at["sandbox"])) }
		made, conditioned, reported = append(made, since(managedProxy)), append(conditioned, since("condition")), append(reported, since("ManagedProxy 0"))
		if i > 0 {
			crashed = append(crashed, m.measureCrash(b, pod))
			m.end(b, name)
		}
	}
	const ready, target = "from the sandbox being ready to the proxy being ready (the pod's condition)", "< 400"
	rows := []row{
		newRow(ready+", against the proxy's container being started", "ms p50", quantile(conditioned, 50), quantile(made, 50), target),
		newRow(ready+", against the proxy's container being started", "ms p95", quantile(conditioned, 95), quantile(made, 95), "reported"),
		newRow("from the sandbox being ready to the ManagedProxy saying so", "ms p50", quantile(reported, 50), 0, "reported"),
	}
	const next = "from a proxy's crash to the start of the next one"
	rows = append(rows, newRow(next, "ms p50", quantile(crashed, 50), 0, "< 300"), newRow(next, "ms p95", quantile(crashed, 95), 0, "reported"))
	return append(rows, m.measureUpgrades(b, w)...)
}

// measureCrash kills a pod's proxy, and returns after how many milliseconds the runtime has started the next one.
func (m managed) measureCrash(b *testing.B, pod *corev1.Pod) float64 {
	b.Helper()
	pid := m.containerPID(b, pod, managedProxy)
	began := time.Now()
	must(b, syscall.Kill(pid, syscall.SIGKILL))
	var started time.Time
	eventually(b, "the next proxy of "+pod.Name, func(ctx context.Context) error {
		list, err := m.proxies(ctx)
		if err != nil {
			return err
		}
		for _, c := range list {
			if c.GetMetadata().GetAttempt() != 1 || c.GetLabels()["io.kubernetes.pod.uid"] != string(pod.UID) || c.GetState() != criv1.ContainerState_CONTAINER_RUNNING {
				continue
			}
			status, err := m.runtime.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: c.GetId()})
			started = time.Unix(0, status.GetStatus().GetStartedAt())
			return err
		}
		return fmt.Errorf("not among %d", len(list))
	})
	return milliseconds(started.Sub(began))
}

// measureUpgrades changes the profile of the one pod that is left, and waits each time until its new proxy serves.
func (m managed) measureUpgrades(b *testing.B, w *proxyWatcher) []row {
	b.Helper()
	took := make([]float64, 0, proxyUpgrades)
	for i := 1; i <= few(proxyUpgrades); i++ {
		began := time.Now()
		m.newVersion(b, fmt.Sprint("version ", i))
		what := fmt.Sprint("ManagedProxy ", i)
		took = append(took, milliseconds(w.await(b, "managed-0", what)[what].Sub(began)))
		eventually(b, "the end of the old proxy", func(ctx context.Context) error {
			all, err := m.proxies(ctx)
			if err == nil && len(all) != 1 {
				err = fmt.Errorf("there are %d", len(all))
			}
			return err
		})
	}
	const name = "one hot upgrade, from the profile's change to the ManagedProxy saying that the new proxy serves"
	return []row{newRow(name, "ms p50", quantile(took, 50), 0, "< 1000"), newRow(name, "ms p95", quantile(took, 95), 0, "reported")}
}

// end deletes a pod and waits until it is gone.
func (s *space) end(b *testing.B, name string) {
	b.Helper()
	now := int64(0)
	must(b, s.pods().Delete(b.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	eventually(b, "the end of "+name, func(ctx context.Context) error {
		list, err := s.pods().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err == nil && len(list.Items) > 0 {
			err = errors.New("it is there")
		}
		return err
	})
}

// extras are what a proxy in a pod of its own would take of a node.
type extras struct{ shims, pods, addresses int }

// measureExtras gives pods that run proxies, and looks at what the node has more then.
func measureExtras(b *testing.B) []row {
	b.Helper()
	m := newManaged(b)
	m.annotateSelf(b, map[string]any{keySidecar: nil})
	s := m.space
	for i := range few(plainPods) {
		s.create(b, newPod(fmt.Sprintf("plain-%d", i), nil, appContainer()))
	}
	s.awaitAll(b, few(plainPods), isRunning)
	s.awaitTidyNode(b, s.agent(b))
	before := m.extras(b)
	m.annotateSelf(b, map[string]any{keySidecar: m.profile})
	for i := range few(plainPods) {
		m.awaitSidecar(b, fmt.Sprintf("plain-%d", i), isServing(0))
	}
	after := m.extras(b)
	rows := make([]row, 0, 3)
	for _, what := range []struct {
		name string
		more int
	}{{"shims", after.shims - before.shims}, {"pods and their sandboxes", after.pods - before.pods}, {"addresses of pods", after.addresses - before.addresses}} {
		rows = append(rows, newRow(fmt.Sprintf("%s more with %d proxies", what.name, few(plainPods)), "count", float64(what.more), 0, "0"))
	}
	return rows
}

func (c *cluster) extras(b *testing.B) (out extras) {
	b.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	must(b, err)
	for _, file := range names {
		if name, err := os.ReadFile(file); err == nil && strings.HasPrefix(string(name), "containerd-shim") {
			out.shims++
		}
	}
	pods, err := c.api.CoreV1().Pods("").List(b.Context(), metav1.ListOptions{})
	must(b, err)
	list, err := c.runtime.ListPodSandbox(b.Context(), &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{
		State: &criv1.PodSandboxStateValue{State: criv1.PodSandboxState_SANDBOX_READY},
	}})
	must(b, err)
	out.pods = len(pods.Items) + len(list.GetItems())
	for _, sandbox := range list.GetItems() {
		status, err := c.runtime.PodSandboxStatus(b.Context(), &criv1.PodSandboxStatusRequest{PodSandboxId: sandbox.GetId()})
		must(b, err)
		if network := status.GetStatus().GetNetwork(); network.GetIp() != "" {
			out.addresses += 1 + len(network.GetAdditionalIps())
		}
	}
	return out
}

// proxyWatcher notes when what happened first to a pod: "sandbox" (it is ready), a container's name (it has started), "condition" (the
// agent says that the pod's network is ready), "ManagedProxy N" (the ManagedProxy says that its proxy of epoch N serves).
type proxyWatcher struct {
	mu   sync.Mutex
	seen map[string]map[string]time.Time
}

// watchProxies notes until the test ends.
func (m managed) watchProxies(b *testing.B) *proxyWatcher {
	b.Helper()
	w := &proxyWatcher{seen: map[string]map[string]time.Time{}}
	pods, err := m.pods().Watch(b.Context(), metav1.ListOptions{})
	must(b, err)
	sidecars, err := m.objects.Resource(sidecarKind("managedproxies")).Namespace(m.name).Watch(b.Context(), metav1.ListOptions{})
	must(b, err)
	var ended sync.WaitGroup
	ended.Go(func() {
		for e := range pods.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok && conditionOf(pod).Status == corev1.ConditionTrue {
				w.note(pod.Name, "condition", time.Now())
			}
		}
	})
	ended.Go(func() {
		for e := range sidecars.ResultChan() {
			if object, ok := e.Object.(*unstructured.Unstructured); ok {
				status, _, _ := unstructured.NestedMap(object.Object, "status")
				if epoch, _ := status["epoch"].(int64); isServing(epoch)(status) == nil {
					w.note(object.GetName(), fmt.Sprint("ManagedProxy ", epoch), time.Now())
				}
			}
		}
	})
	b.Cleanup(func() { pods.Stop(); sidecars.Stop(); ended.Wait() })
	m.watchRuntime(b, func(e startedEvent) {
		if e.sandbox {
			e.name = "sandbox"
		}
		w.note(e.pod, e.name, e.at)
	})
	return w
}

func (w *proxyWatcher) note(pod, what string, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen[pod] == nil {
		w.seen[pod] = map[string]time.Time{}
	}
	if _, ok := w.seen[pod][what]; !ok {
		w.seen[pod][what] = at
	}
}

// await waits until all of that has happened to a pod.
func (w *proxyWatcher) await(b *testing.B, pod string, all ...string) (at map[string]time.Time) {
	b.Helper()
	at = map[string]time.Time{}
	eventually(b, "the moments of "+pod, func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, what := range all {
			if at[what] = w.seen[pod][what]; at[what].IsZero() {
				return fmt.Errorf("not all of %q are known: %v", all, w.seen[pod])
			}
		}
		return nil
	})
	return at
}
