package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A new pod's first proxy has the pod's addresses of all families, which the pod's status gets later.
//
//e2e:rounds nri
func TestProxyPodIP(t *testing.T) {
	t.Parallel()
	m := newManaged(t, func(spec map[string]any) {
		spec["env"] = []any{
			map[string]any{"name": "POD_IP", "fieldPath": "status.podIP"}, map[string]any{"name": "POD_IPS", "fieldPath": "status.podIPs"},
		}
		addresses := map[string]any{"name": "addresses", "template": "{{ .Pod.IP }}{{ range .Pod.IPs }} {{ . }}{{ end }}"}
		spec["files"] = append(spec["files"].([]any), addresses)
	})
	pod := m.startManaged(t, plainPod("addressed"))
	m.awaitSidecar(t, "addressed", isServing(0))
	var all []string
	for _, ip := range pod.Status.PodIPs {
		all = append(all, ip.IP)
	}
	text, err := os.ReadFile(filepath.Join(m.home(t, pod), "files-0/addresses"))
	must(t, err)
	if want := pod.Status.PodIP + " " + strings.Join(all, " "); string(text) != want {
		t.Errorf("the file has %q, want %q", text, want)
	}
	environ := strings.Split(m.proc(t, pod, managedProxy, "environ"), "\x00")
	for _, want := range []string{"POD_IP=" + pod.Status.PodIP, "POD_IPS=" + strings.Join(all, ",")} {
		if !slices.Contains(environ, want) {
			t.Errorf("the environment %q has no %s", environ, want)
		}
	}
}

// proc returns a file of the first process of a container in /proc.
func (m managed) proc(t *testing.T, pod *corev1.Pod, container, file string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", m.containerPID(t, pod, container), file))
	must(t, err)
	return string(text)
}

// wantUntouched wants a pod's first proxy to run on as the process that it was, and to serve.
func (m managed) wantUntouched(t *testing.T, pod *corev1.Pod, process int) {
	t.Helper()
	m.awaitSidecar(t, pod.Name, isServing(0))
	if now := m.containerPID(t, pod, managedProxy); now != process {
		t.Errorf("the proxy is process %d, was %d", now, process)
	}
	m.wantProxied(t, m.await(t, pod.Name, isReadyNow))
}

// The resources of a running application change, and its proxy and connections stay. The kernel ends the proxy as late as the
// application.
//
//e2e:rounds nri
func TestProxyOfAResizedPod(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	sized := func(cpu, memory string) corev1.ResourceRequirements {
		all := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
		return corev1.ResourceRequirements{Requests: all, Limits: all}
	}
	pod := plainPod("resized")
	pod.Spec.Containers[0].Resources = sized("100m", "128Mi")
	pod = m.startManaged(t, pod)
	if got, want := m.proc(t, pod, managedProxy, "oom_score_adj"), m.proc(t, pod, "app", "oom_score_adj"); got != want {
		t.Errorf("the proxy has the score %s, the application of the guaranteed pod %s", got, want)
	}
	process, held := m.containerPID(t, pod, managedProxy), dialEcho(t, at(pod, families()[0], appTCPPort))

	want := sized("150m", "160Mi")
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "app", "resources": want}}}})
	must(t, err)
	_, err = m.pods().Patch(t.Context(), pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "resize")
	must(t, err)
	pod = m.await(t, pod.Name, func(pod *corev1.Pod) error {
		has := pod.Status.ContainerStatuses[0]
		if r := has.Resources; r == nil || !r.Limits.Cpu().Equal(*want.Limits.Cpu()) || !r.Limits.Memory().Equal(*want.Limits.Memory()) || has.RestartCount > 0 {
			return fmt.Errorf("it has %+v after %d restarts, conditions %+v", r, has.RestartCount, pod.Status.Conditions)
		}
		return nil
	})
	held.say(t, "after the resize")
	m.wantUntouched(t, pod, process)
}

// The kubelet starts all containers of a pod's spec again in their sandbox. The proxy is none of them.
//
//e2e:rounds nri
func TestProxyOfAPodWhoseContainersAreAllRestarted(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	if !m.isKubernetes(t, "1.36") {
		t.Skip("a kubelet before Kubernetes 1.36 restarts no whole pod by default")
	}
	never := corev1.ContainerRestartPolicyNever
	leader := toolsContainer()
	leader.Name, leader.Args, leader.RestartPolicy = "leader", nil, &never
	leader.Command = []string{"sh", "-c", "until [ -e /end ]; do usleep 100000; done; exit 88"}
	leader.RestartPolicyRules = []corev1.ContainerRestartRule{{
		Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{88}},
	}}
	pod := plainPod("again")
	pod.Spec.Containers = append(pod.Spec.Containers, leader)
	pod = m.startManaged(t, pod)
	process, before := m.containerPID(t, pod, managedProxy), appID(pod)
	_, err := m.run(t.Context(), command{namespace: m.name, pod: pod.Name, container: "leader", argv: []string{"touch", "/end"}})
	must(t, err)
	pod = m.await(t, pod.Name, func(pod *corev1.Pod) error {
		if id := appID(pod); id == "" || id == before {
			return fmt.Errorf("its containers are not restarted: %+v", pod.Status.ContainerStatuses)
		}
		return isReadyNow(pod)
	})
	m.wantUntouched(t, pod, process)
	must(t, m.pods().Delete(context.WithoutCancel(t.Context()), pod.Name, metav1.DeleteOptions{}))
	m.wantNothingLeft(t, []types.UID{pod.UID})
}

// appID returns the ID of a pod's running application, or "".
func appID(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == "app" && c.State.Running != nil {
			return c.ContainerID
		}
	}
	return ""
}
