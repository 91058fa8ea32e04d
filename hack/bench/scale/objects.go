package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/test/standins/runtimestandin"
)

// atOnce is how many requests the objects are made with at a time.
const atOnce = 24

func namespaceName(i int) string { return fmt.Sprintf("team-%04d", i) }
func nodeName(i int) string      { return fmt.Sprintf("node-%d", i) }
func podName(i int) string       { return fmt.Sprintf("pod-%05d", i) }

// makeNamespaces makes namespaces that ask for redirection, with labels and annotations as people have them.
func makeNamespaces(ctx context.Context, c kubernetes.Interface, n int) error {
	return each(ctx, n, func(ctx context.Context, i int) error {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name:   namespaceName(i),
			Labels: map[string]string{"team": fmt.Sprint("team-", i%50), "pod-security.kubernetes.io/enforce": "baseline", "istio.io/rev": "default"},
			Annotations: map[string]string{
				intent.KeyInitialize: "true", "example.com/owner": "somebody@example.com", "example.com/description": strings.Repeat("what it is for. ", 10),
			},
		}}
		_, err := c.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
		return err
	})
}

// makePods makes pods numbered from first, each in one of the namespaces and on the node that on names, as changed.
func makePods(
	ctx context.Context, c kubernetes.Interface, first, n, namespaces int, on func(i int) string, change ...func(*corev1.Pod),
) ([]*corev1.Pod, error) {
	pods := make([]*corev1.Pod, n)
	err := each(ctx, n, func(ctx context.Context, i int) (err error) {
		pod := newPod(podName(first+i), namespaceName((first+i)%namespaces), on(i))
		for _, f := range change {
			f(pod)
		}
		pods[i], err = c.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
	return pods, err
}

// agentNamespace is where agents run.
const agentNamespace = "mesh"

// agentPod is the name of an agent's own pod.
func agentPod(node string) string { return "agent-" + node }

// makeAgentPods makes the pods of n agents, on which each reports about itself.
func makeAgentPods(ctx context.Context, c kubernetes.Interface, n int) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: agentNamespace}}
	if _, err := c.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	return each(ctx, n, func(ctx context.Context, i int) error {
		pod := newPod(agentPod(nodeName(i)), agentNamespace, nodeName(i))
		_, err := c.CoreV1().Pods(agentNamespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
}

// newPod returns a pod of an application and its proxy, of the size that such pods have.
func newPod(name, namespace, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: namespace,
			Labels:      map[string]string{"app": name, "version": "v1", "pod-template-hash": "5f6d7c8b9", "security.istio.io/tlsMode": "istio"},
			Annotations: map[string]string{"kubectl.kubernetes.io/default-container": "app", "prometheus.io/scrape": "true", "example.com/checksum": strings.Repeat("0123456789abcdef", 4)},
		},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{newContainer("app", 8), newContainer(intent.ProxyContainer, 30)},
			Volumes: []corev1.Volume{
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config"}}}},
			},
		},
	}
}

func newContainer(name string, variables int) corev1.Container {
	size := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	c := corev1.Container{
		Name: name, Image: "registry.example.com/" + name + ":1.2.3", Args: []string{"--log-level=info", "--listen=:8080"},
		Ports:        []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
		Resources:    corev1.ResourceRequirements{Requests: size, Limits: size},
		VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "config", MountPath: "/etc/config"}},
	}
	if name == intent.ProxyContainer {
		c.Ports[0] = corev1.ContainerPort{Name: "http-envoy-prom", ContainerPort: 15090}
	}
	for i := range variables {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%02d", i), Value: strings.Repeat("value ", 6)})
	}
	return c
}

// setStatus writes a pod's status as the kubelet does: by a patch, which leaves alone what others have written.
func (s *server) setStatus(ctx context.Context, pod *corev1.Pod) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": pod.Status})
	if err != nil {
		return err
	}
	_, err = s.admin.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// starting is the status that the kubelet writes when it has seen a pod.
func starting(pod *corev1.Pod) *corev1.Pod {
	out := pod.DeepCopy()
	out.Status = corev1.PodStatus{Phase: corev1.PodPending, StartTime: new(metav1.Now()), Conditions: conditions(corev1.ConditionFalse)}
	for _, c := range pod.Spec.Containers {
		out.Status.ContainerStatuses = append(out.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
		})
	}
	return out
}

// running is the status that the kubelet writes when a pod's containers run.
func running(pod *corev1.Pod, number int) *corev1.Pod {
	out := starting(pod)
	out.Status.Phase, out.Status.Conditions = corev1.PodRunning, conditions(corev1.ConditionTrue)
	out.Status.PodIP = fmt.Sprintf("10.%d.%d.%d", 1+number>>16, number>>8&255, number&255)
	out.Status.PodIPs = []corev1.PodIP{{IP: out.Status.PodIP}}
	for i := range out.Status.ContainerStatuses {
		s := &out.Status.ContainerStatuses[i]
		s.ContainerID, s.ImageID, s.Ready, s.Started = "containerd://"+runtimestandin.HexID(pod.Name+s.Name), s.Image+"@sha256:"+runtimestandin.HexID(s.Image), true, new(true)
		// Long ago: nobody waits for its proxy.
		s.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now().Add(-time.Hour))}}
	}
	return out
}

func conditions(ready corev1.ConditionStatus) (out []corev1.PodCondition) {
	for _, kind := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodReady, corev1.ContainersReady, corev1.PodInitialized, corev1.PodScheduled} {
		c := corev1.PodCondition{Type: kind, Status: ready, LastTransitionTime: metav1.Now()}
		if kind == corev1.PodInitialized || kind == corev1.PodScheduled {
			c.Status = corev1.ConditionTrue
		}
		out = append(out, c)
	}
	return out
}

// each calls f for 0 to n-1, several at a time.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := range n {
		group.Go(func() error { return f(ctx, i) })
	}
	return group.Wait()
}
