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

// An application that dials in its first moment is answered at its first try, outside and injected, by a server that takes mTLS alone. The figures are
// from the sandbox to that answer.
func (o outside) starts(t *testing.T) {
	m := o.injectedMesh(t)
	m.apply(t, strict)
	m.startManaged(t, m.movedOut(m.member(t, "store", "v1")))
	injected := func(pod *corev1.Pod) *corev1.Pod { return pod }
	took := map[string][]time.Duration{}
	for i := range amount(t, "E2E_ISTIO_STARTS", startsMeasured) {
		for shape, change := range map[string]func(*corev1.Pod) *corev1.Pod{"outside": m.movedOut, "injected": injected} {
			pod := change(m.member(t, shape, fmt.Sprint("start-", i)))
			pod.Spec.RestartPolicy, pod.Spec.ReadinessGates = corev1.RestartPolicyNever, nil
			pod.Spec.Containers[0].Args = []string{"dial", "-n=1", "-timeout=20s", "-last=" + corev1.TerminationMessagePathDefault, meshURL("store")}
			pod = m.create(t, pod)
			if said := m.awaitJob(t, pod.Name); said.OK != 1 || said.Failed != 0 {
				t.Errorf("%s: %+v", pod.Name, said)
			}
			took[shape] = append(took[shape], m.lasted(t, pod).Round(time.Millisecond))
			must(t, m.pods().Delete(t.Context(), pod.Name, metav1.DeleteOptions{}))
		}
	}
	for shape, all := range took {
		slices.Sort(all)
		t.Logf("%s: %d pods, from the sandbox to the first answer: p50 %s, p95 %s", shape, len(all), all[len(all)/2], all[len(all)*95/100])
	}
}

// lasted is how long after its sandbox the only application of a pod has ended.
func (c *cluster) lasted(t *testing.T, pod *corev1.Pod) time.Duration {
	t.Helper()
	of := map[string]string{"io.kubernetes.pod.uid": string(pod.UID)}
	sandboxes, err := c.runtime.ListPodSandbox(t.Context(), &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{LabelSelector: of}})
	must(t, err)
	list, err := c.runtime.ListContainers(t.Context(), &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{LabelSelector: map[string]string{
		"io.kubernetes.pod.uid": string(pod.UID), "io.kubernetes.container.name": "app",
	}}})
	must(t, err)
	if len(sandboxes.GetItems()) != 1 || len(list.GetContainers()) != 1 {
		t.Fatalf("%s has %d sandboxes and %d applications", pod.Name, len(sandboxes.GetItems()), len(list.GetContainers()))
	}
	status, err := c.runtime.ContainerStatus(t.Context(), &criv1.ContainerStatusRequest{ContainerId: list.GetContainers()[0].GetId()})
	must(t, err)
	return time.Duration(status.GetStatus().GetFinishedAt() - sandboxes.GetItems()[0].GetCreatedAt())
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
