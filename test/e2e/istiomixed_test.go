package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const keyInject = "sidecar.istio.io/inject"

// injectedMesh is the namespace that Istio injects. Single pods of it have their proxies outside: they refuse the injection, and name a profile.
func (o outside) injectedMesh(t *testing.T) managed {
	t.Helper()
	objects, err := dynamic.NewForConfig(o.rest)
	must(t, err)
	m := managed{o.space, o.name, objects}
	m.createProfileFrom(t, "proxy-profile-istio.yaml", ofIstioImage)
	t.Cleanup(func() { m.deleteProfile(t) })
	return m
}

// movedOut has a pod's proxy be outside, in a namespace that is injected.
func (m managed) movedOut(pod *corev1.Pod) *corev1.Pod {
	pod.Labels[keyInject] = "false"
	pod.Annotations = map[string]string{keySidecar: m.profile}
	return pod
}

// An injected pod and a pod whose proxy is outside are members of one mesh. Both reach a pod without a proxy, without mTLS.
func (o outside) mixed(t *testing.T) {
	m := o.injectedMesh(t)
	m.apply(t, strict)
	without := m.member(t, "without", "v1")
	without.Labels[keyInject] = "false"
	pods := []*corev1.Pod{m.create(t, m.member(t, "injected", "v1")), m.create(t, m.movedOut(m.member(t, "moved", "v1")))}
	without = m.create(t, without)
	m.wantIdentities(t, pods)
	injected, moved := pods[0], pods[1]
	if n := len(injected.Spec.InitContainers); n == 0 {
		t.Error("Istio has not injected the pod that it was to inject")
	}
	if n := len(moved.Spec.Containers) + len(moved.Spec.InitContainers); n != 1 {
		t.Errorf("the pod whose proxy is outside has %d containers in its spec", n)
	}
	m.asks(t, patience, injected, meshURL("moved"), func(a answer) error { return m.calledBy(a, "moved", "injected") })
	m.asks(t, patience, moved, meshURL("injected"), func(a answer) error { return m.calledBy(a, "injected", "moved") })
	m.await(t, without.Name, isRunning)
	for _, pod := range pods {
		m.asks(t, patience, pod, meshURL("without"), func(a answer) error {
			if a.ClientCert != "" {
				return fmt.Errorf("it was asked with the certificate %s", a.ClientCert)
			}
			return nil
		})
	}
}

// startsMeasured is how many pods of each shape are started for the figures, unless E2E_ISTIO_STARTS says otherwise.
const startsMeasured = 2

// From the sandbox to the start of the proxy's process, and to the ready proxy as Kubernetes says it: outside, and injected.
func (o outside) starts(t *testing.T) {
	m := o.injectedMesh(t)
	for _, shape := range []struct {
		name, container string
		change          func(*corev1.Pod) *corev1.Pod
		ready           func(*corev1.Pod) bool
	}{
		{"outside", managedProxy, m.movedOut, func(pod *corev1.Pod) bool { return conditionOf(pod).Status == corev1.ConditionTrue }},
		{"injected", "istio-proxy", func(pod *corev1.Pod) *corev1.Pod { return pod }, hasInjectedProxy},
	} {
		var started, readied []time.Duration
		for i := range amount(t, "E2E_ISTIO_STARTS", startsMeasured) {
			pod := shape.change(m.member(t, shape.name, fmt.Sprint("start-", i)))
			start, ready := m.proxyStart(t, pod, shape.container, shape.ready)
			started, readied = append(started, start), append(readied, ready)
		}
		for what, took := range map[string][]time.Duration{"process": started, "ready proxy": readied} {
			slices.Sort(took)
			t.Logf("%s: %d pods, from the sandbox to the %s %s to %s, median %s", shape.name, len(took), what, took[0], took[len(took)-1], took[len(took)/2])
		}
	}
}

// hasInjectedProxy reports whether the injected container has started, of which the kubelet asks by its startup probe.
func hasInjectedProxy(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.InitContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.Name == "istio-proxy" && c.Started != nil && *c.Started
	})
}

// proxyStart makes a pod, waits until its proxy is ready, and deletes it. It returns how long after the sandbox the proxy's process was started, and
// the proxy was ready.
func (m managed) proxyStart(t *testing.T, pod *corev1.Pod, container string, isReady func(*corev1.Pod) bool) (started, ready time.Duration) {
	t.Helper()
	watched, err := m.pods().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + pod.Name})
	must(t, err)
	defer watched.Stop()
	pod = m.create(t, pod)
	defer func() { must(t, m.pods().Delete(t.Context(), pod.Name, metav1.DeleteOptions{})) }()
	limit := time.After(patience)
	for {
		select {
		case <-limit:
			t.Fatalf("the proxy of %s is not ready: %+v", pod.Name, pod.Status)
		case event := <-watched.ResultChan():
			now, ok := event.Object.(*corev1.Pod)
			if !ok || event.Type == watch.Deleted {
				t.Fatalf("the watch of %s says %+v", pod.Name, event)
			}
			if pod = now; isReady(pod) {
				sandbox, proxy := m.madeAt(t, pod, container)
				return proxy.Sub(sandbox).Round(time.Millisecond), time.Since(sandbox).Round(time.Millisecond)
			}
		}
	}
}

// madeAt is when the runtime had made a pod's sandbox, and had started a container in it.
func (c *cluster) madeAt(t *testing.T, pod *corev1.Pod, container string) (sandbox, started time.Time) {
	t.Helper()
	id := c.sandboxOf(t, pod).ID
	made, err := c.runtime.PodSandboxStatus(t.Context(), &criv1.PodSandboxStatusRequest{PodSandboxId: id})
	must(t, err)
	list, err := c.runtime.ListContainers(t.Context(), &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{
		PodSandboxId: id, LabelSelector: map[string]string{"io.kubernetes.container.name": container},
	}})
	must(t, err)
	if len(list.GetContainers()) != 1 {
		t.Fatalf("%s has %d containers %s", pod.Name, len(list.GetContainers()), container)
	}
	status, err := c.runtime.ContainerStatus(t.Context(), &criv1.ContainerStatusRequest{ContainerId: list.GetContainers()[0].GetId()})
	must(t, err)
	return time.Unix(0, made.GetStatus().GetCreatedAt()), time.Unix(0, status.GetStatus().GetStartedAt())
}

// What is wrong is said in words, where people look.
func (o outside) mistakes(t *testing.T) {
	for name, c := range map[string]struct {
		profile func(spec map[string]any)
		pod     func(*corev1.Pod)
		words   []string
	}{
		"a revision that does not exist": {
			profile: func(spec map[string]any) { spec["revision"] = "canary" },
			words:   []string{"istio-canary", "istio-system"},
		},
		"a namespace without a control plane": {
			profile: func(spec map[string]any) { spec["namespace"] = "nowhere" },
			words:   []string{"nowhere"},
		},
		"an application at the port of the proxy's health": {
			pod:   func(pod *corev1.Pod) { pod.Spec.Containers[0].Args = []string{"serve", "-http=15021"} },
			words: []string{"15021"},
		},
		"a setting that cannot be read": {
			pod:   func(pod *corev1.Pod) { pod.Annotations = map[string]string{"proxy.istio.io/config": "{"} },
			words: []string{"proxy.istio.io/config"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var changes []func(map[string]any)
			if c.profile != nil {
				changes = append(changes, c.profile)
			}
			m := o.mesh(t, changes...)
			pod := m.member(t, "wrong", "v1")
			if c.pod != nil {
				c.pod(pod)
			}
			pod = m.create(t, pod)
			m.awaitSidecar(t, pod.Name, says(false, c.words...))
			if now := m.await(t, pod.Name, isRunning); isReady(now) {
				t.Error("the pod is ready")
			}
		})
	}
	t.Run("a static pod", func(t *testing.T) {
		t.Parallel()
		m := o.mesh(t)
		mirror := m.runStatic(t, plainPod("static"))
		m.await(t, mirror, func(pod *corev1.Pod) error {
			if c := conditionOf(pod); c.Reason != proxyRefused || !strings.Contains(c.Message, "static pod, which has no ServiceAccount") {
				return fmt.Errorf("its condition is %+v", c)
			}
			return nil
		})
	})
	t.Run("a pod that is injected as well", func(t *testing.T) {
		t.Parallel()
		m := o.mesh(t)
		pod := m.member(t, "both", "v1")
		pod.Labels[keyInject] = "true"
		pod = m.create(t, pod)
		m.await(t, pod.Name, func(pod *corev1.Pod) error {
			if c := conditionOf(pod); c.Reason != proxyRefused || !strings.Contains(c.Message, "istio-proxy") {
				return fmt.Errorf("its condition is %+v", c)
			}
			return nil
		})
		must(t, m.pods().Delete(context.WithoutCancel(t.Context()), pod.Name, metav1.DeleteOptions{}))
	})
}
