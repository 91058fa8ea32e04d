package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// labelSpace is on each namespace that a test makes: hack/e2e.sh removes by it what a failed test has kept.
const labelSpace = "e2e-test"

// space is a namespace that one test has for itself.
type space struct {
	*cluster
	name string
}

// newSpace makes a namespace in which pods can be made. It goes with the test, unless that fails.
func newSpace(t testing.TB, annotations map[string]string) *space {
	t.Helper()
	c := open(t)
	made, err := c.api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-", Labels: map[string]string{labelSpace: ""}, Annotations: annotations},
	}, metav1.CreateOptions{})
	must(t, err)
	s := &space{cluster: c, name: made.Name}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("namespace %s is kept, to be looked at", s.name)
			return
		}
		must(t, c.api.CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), s.name, metav1.DeleteOptions{}))
	})
	eventually(t, "the default service account", func(ctx context.Context) error {
		_, err := c.api.CoreV1().ServiceAccounts(s.name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return s
}

// newQuietSpace is newSpace for a test that counts what the agent does: it first waits until the pods of earlier tests are gone.
func newQuietSpace(t testing.TB, annotations map[string]string) *space {
	t.Helper()
	s := newSpace(t, annotations)
	eventually(t, "the end of earlier tests' pods", func(ctx context.Context) error {
		namespaces, err := s.api.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range namespaces.Items {
			ns := &namespaces.Items[i]
			if ns.DeletionTimestamp == nil {
				continue
			}
			pods, err := s.api.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			if n := len(pods.Items); n > 0 {
				return fmt.Errorf("namespace %s still has %d pods", ns.Name, n)
			}
		}
		return s.homesOfGonePods(ctx)
	})
	return s
}

// homesOfGonePods is an error while there are directories of proxies whose pods are gone. In other rounds than nri nobody removes these.
func (s *space) homesOfGonePods(ctx context.Context) error {
	if hook() != "nri" {
		return nil
	}
	homes, err := filepath.Glob(filepath.Join(s.node.NodeRoot, sidecarRoot, "*.*"))
	if err != nil || len(homes) == 0 {
		return err
	}
	pods, err := s.api.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, home := range homes {
		uid, _, _ := strings.Cut(filepath.Base(home), ".")
		if !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return string(p.UID) == uid }) {
			return fmt.Errorf("%s is still there, and its pod is gone", home)
		}
	}
	return nil
}

func (s *space) pods() typedcorev1.PodInterface { return s.api.CoreV1().Pods(s.name) }

func (s *space) create(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	made, err := s.pods().Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	return made
}

// start makes a pod, and waits until its containers run and its application answers, redirected or not.
func (s *space) start(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	s.create(t, pod)
	return s.awaitAnswer(t, pod.Name)
}

// awaitAnswer waits until the pod's application, and its proxy if that is the test's, answer at the address that the pod
// has by then.
func (s *space) awaitAnswer(t testing.TB, name string) *corev1.Pod {
	t.Helper()
	return s.await(t, name, func(pod *corev1.Pod) error {
		if err := isRunning(pod); err != nil {
			return err
		}
		var a answer
		if err := request(t.Context(), at(pod, families()[0], appPort), "/", &a); err != nil {
			return err
		}
		if a.Banner != name {
			return fmt.Errorf("%s answered at its address", a.Banner)
		}
		if !hasJournal(pod) {
			return nil
		}
		var c map[string]count
		return ask(t.Context(), pod, "/counts", &c)
	})
}

func hasJournal(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		return c.Image == proxyImage && c.Name != validation
	})
}

// startMesh is start for a pod that is to be programmed.
func (s *space) startMesh(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	s.start(t, pod)
	return s.await(t, pod.Name, hasStatus(statusInitialized))
}

// await waits until the pod is as check wants it.
func (s *space) await(t testing.TB, name string, check func(*corev1.Pod) error) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	eventually(t, "pod "+name, func(ctx context.Context) error {
		var err error
		if pod, err = s.pods().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		return check(pod)
	})
	return pod
}

// annotate changes annotations of a pod; nil takes one away.
func (s *space) annotate(t testing.TB, pod string, annotations map[string]any) {
	t.Helper()
	_, err := s.pods().Patch(t.Context(), pod, types.MergePatchType, annotationPatch(t, annotations), metav1.PatchOptions{})
	must(t, err)
}

// annotateSelf changes annotations of the namespace.
func (s *space) annotateSelf(t testing.TB, annotations map[string]any) {
	t.Helper()
	_, err := s.api.CoreV1().Namespaces().Patch(t.Context(), s.name, types.MergePatchType, annotationPatch(t, annotations), metav1.PatchOptions{})
	must(t, err)
}

func annotationPatch(t testing.TB, annotations map[string]any) []byte {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	must(t, err)
	return patch
}

func isRunning(pod *corev1.Pod) error {
	if len(pod.Status.ContainerStatuses) != len(pod.Spec.Containers) || len(pod.Status.PodIPs) == 0 {
		return fmt.Errorf("it is %s", pod.Status.Phase)
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running == nil {
			return fmt.Errorf("container %s does not run: %v", c.Name, c.State)
		}
	}
	return nil
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// at is a port of the pod in one family.
func at(pod *corev1.Pod, f family, port uint16) netip.AddrPort {
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil && a.Is4() == f.client.Is4() {
			return netip.AddrPortFrom(a, port)
		}
	}
	return netip.AddrPort{}
}
