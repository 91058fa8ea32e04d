package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// controller2018 stands for the controller of 2018: objects with its names in istio-system, and somebody who does what it did for as long
// as its DaemonSet is there: program each pod that asks by iptables, once it has a sandbox, and then say so in an annotation.
func (s *space) controller2018(t *testing.T) {
	t.Helper()
	s.makeIstioSystem(t)
	s.mustKubectl(t, "apply", "-f", "testdata/migrate/controller-2018.yaml")
	t.Cleanup(func() {
		s.mustKubectl(t, "delete", "--ignore-not-found", "--wait=false", "-f", "testdata/migrate/controller-2018.yaml")
	})
	dir := t.TempDir()
	for name, text := range istioRules(t) {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	t.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		tick := time.NewTicker(pollEvery)
		defer tick.Stop()
		for ctx.Err() == nil {
			if err := s.round2018(ctx, dir); err != nil && ctx.Err() == nil {
				t.Logf("the stand-in of the controller of 2018: %v", err)
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}()
}

// round2018 programs the pods that have a sandbox and no annotation.
func (s *space) round2018(ctx context.Context, dir string) error {
	_, err := s.api.AppsV1().DaemonSets("istio-system").Get(ctx, agentName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	list, err := s.pods().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.Annotations[keyStatus] != "" || pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil {
			continue
		}
		sandbox, err := s.findSandbox(ctx, pod)
		if err != nil {
			continue // not yet
		}
		m := migrantOf(pod)
		cmd := exec.CommandContext(ctx, "nsenter", "--net="+sandbox.here(s.cluster), "sh", filepath.Join(dir, "program.sh"), m.mode, m.flavour)
		if err := cmd.Run(); err != nil {
			return err
		}
		patch := []byte(`{"metadata":{"annotations":{"` + keyStatus + `":"` + statusInitialized + `"}}}`)
		if _, err := s.pods().Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// sidecarContainer is the proxy. The proxy of a canary takes no redirected connection.
func sidecarContainer(pod *corev1.Pod) corev1.Container {
	m := migrantOf(pod)
	args := append([]string{"proxy", "sidecar"}, m.proxyArgs()...)
	proxy := proxyContainer("istio-proxy", args...)
	if m.mode == tproxyMode {
		proxy = asRoot(proxyContainer("istio-proxy", args...), "NET_ADMIN")
	}
	proxy.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 60, ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/healthz/ready", Port: intstr.FromInt32(int32(journalPort))},
	}}
	return proxy
}

// injected2018 adds what the injector's template of 2018 added: a container that waits for the annotation, and the proxy.
func injected2018(d *appsv1.Deployment) *appsv1.Deployment {
	pod := &d.Spec.Template
	proxy := sidecarContainer(&corev1.Pod{ObjectMeta: pod.ObjectMeta})
	proxy.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 6}}}
	pod.Spec.Containers = append(pod.Spec.Containers, proxy)
	user := int64(1337)
	pod.Spec.InitContainers = []corev1.Container{{
		Name: "istio-init", Image: "localhost/tools:1",
		Command:         []string{"sh", "-c", "until grep -q '" + keyStatus + `="` + statusInitialized + "\"' /etc/podinfo/pod_annotations; do usleep 200000; done"},
		SecurityContext: &corev1.SecurityContext{RunAsUser: &user},
		VolumeMounts:    []corev1.VolumeMount{{Name: "podinfo", MountPath: "/etc/podinfo"}},
	}}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "podinfo", VolumeSource: corev1.VolumeSource{
		DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{
			Path: "pod_annotations", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations"},
		}}},
	}})
	// It read settings from labels.
	if mode, ok := pod.Annotations[keyMode]; ok {
		delete(pod.Annotations, keyMode)
		pod.Labels[keyMode] = mode
	}
	return d
}

// mustKubectl runs kubectl, also while the test cleans up.
func (c *cluster) mustKubectl(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(cleanup(t), "kubectl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
}

// cleanup is the test's context, which does not end before its cleanup.
func cleanup(t testing.TB) context.Context {
	t.Helper()
	return context.WithoutCancel(t.Context())
}
