package connectivity

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/diagnostics/cluster"
	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/internal/podreport"
)

// KeyRun is the label of everything that a run makes; its value is the run's own.
const KeyRun = "pod-network-controller.istio.io/connectivity-test"

// The containers of a pod.
const (
	containerApplication = "application"
	containerProxy       = intent.ProxyContainer
)

// Users of the containers. The proxy's is Istio's.
const (
	applicationUser int64 = 1000
	proxyUser       int64 = 1337
)

// lifetime ends the pods of a run that could not clean up.
const lifetime = 15 * time.Minute

// testNamespace is a namespace that takes restricted pods only, and that injectors leave alone.
func testNamespace(run string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "pod-network-test-" + run,
		Labels: map[string]string{
			KeyRun: run, "pod-security.kubernetes.io/enforce": "restricted", "istio-injection": "disabled", "istio.io/dataplane-mode": "none",
		},
		Annotations: map[string]string{"linkerd.io/inject": "disabled"},
	}}
}

// podMaker makes the pods of a run.
type podMaker struct {
	run, namespace, image string
	// injected makes pods that agents with --select injected take, instead of annotated ones.
	injected bool
}

// server is the pod that is connected to. node may be empty: the scheduler chooses.
func (m podMaker) server(index int, node string) *corev1.Pod {
	name := fmt.Sprintf("server-%s-%d", m.run, index)
	return m.pod(name, node, "application", "--pod="+name)
}

// client is the pod that connects, and ends with proofs in its termination message.
func (m podMaker) client(index int, node, server string, targets []netip.Addr, patience time.Duration) *corev1.Pod {
	name := fmt.Sprintf("client-%s-%d", m.run, index)
	args := []string{"prove", "--pod=" + name, "--server=" + server, "--for=" + patience.String()}
	for _, target := range targets {
		args = append(args, "--target="+target.String())
	}
	return m.pod(name, node, args...)
}

func (m podMaker) pod(name, node string, args ...string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: m.namespace, Annotations: m.annotations(),
			Labels: map[string]string{KeyRun: m.run, "app.kubernetes.io/name": "pod-network-connectivity-test"},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{
				m.container(containerProxy, proxyUser, "proxy", "--pod="+name),
				m.container(containerApplication, applicationUser, args...),
			},
			RestartPolicy: corev1.RestartPolicyNever, DNSPolicy: corev1.DNSDefault,
			ActiveDeadlineSeconds: new(int64(lifetime.Seconds())), TerminationGracePeriodSeconds: new(int64(0)),
			AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			NodeSelector: map[string]string{corev1.LabelOSStable: "linux"},
			Tolerations:  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	if !m.injected {
		pod.Labels["sidecar.istio.io/inject"] = "false"
	}
	if node != "" {
		pod.Spec.Affinity = onNode(node)
	}
	return pod
}

// annotations ask for redirection, and set everything that an agent's flags could set otherwise.
func (m podMaker) annotations() map[string]string {
	out := map[string]string{
		intent.KeyInitialize:                               "true",
		"kubectl.kubernetes.io/default-container":          containerApplication,
		"sidecar.istio.io/interceptionMode":                "REDIRECT",
		intent.KeyOutboundPort:                             fmt.Sprint(portOutbound),
		intent.KeyInboundPort:                              fmt.Sprint(portInbound),
		intent.KeyTunnelPort:                               "15008",
		intent.KeyIPv6:                                     "capture",
		intent.KeyDNSCapture:                               "off",
		"traffic.sidecar.istio.io/includeInboundPorts":     "*",
		"traffic.sidecar.istio.io/excludeInboundPorts":     fmt.Sprint(portExcluded),
		"traffic.sidecar.istio.io/includeOutboundIPRanges": "*",
		"traffic.sidecar.istio.io/excludeOutboundIPRanges": "",
		"traffic.sidecar.istio.io/includeOutboundPorts":    "",
		"traffic.sidecar.istio.io/excludeOutboundPorts":    fmt.Sprintf("%d,%d", portEntering, portExcluded),
	}
	if m.injected {
		out["sidecar.istio.io/status"] = "{}" // what Istio's injector leaves
	}
	return out
}

// container runs one of the stand-ins of the agent's program, with what the policy for restricted pods allows.
func (m podMaker) container(name string, user int64, args ...string) corev1.Container {
	return corev1.Container{
		Name: name, Image: m.image, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{"/istio-pod-network-controller"}, Args: append([]string{"connectivity", "stand-in"}, args...),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("48Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("128Mi")},
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: new(user), RunAsGroup: new(user), RunAsNonRoot: new(true), AllowPrivilegeEscalation: new(false),
			ReadOnlyRootFilesystem: new(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}

// onNode has the scheduler put a pod on one node, and say why if it cannot.
func onNode(node string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}},
	}}
}

// notRunning says why a pod does not run with all containers and an address, or "".
func notRunning(pod *corev1.Pod) string {
	if why := beingDeleted(pod); why != "" {
		return why
	}
	if pod.Status.Phase == corev1.PodFailed {
		return fmt.Sprintf("pod %s failed: %s %s", pod.Name, pod.Status.Reason, pod.Status.Message)
	}
	if c := podreport.ConditionOf(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return fmt.Sprintf("pod %s is not scheduled: %s", pod.Name, c.Message)
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil {
			return fmt.Sprintf("pod %s: container %s waits: %s", pod.Name, c.Name, strings.TrimSpace(w.Reason+" "+w.Message))
		}
	}
	if pod.Status.Phase != corev1.PodRunning && terminated(pod) == nil || len(addresses(pod)) == 0 {
		return fmt.Sprintf("pod %s is %s", pod.Name, pod.Status.Phase)
	}
	return ""
}

// beingDeleted says that a pod is going, or "".
func beingDeleted(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return deletedPod + pod.Name
	}
	return ""
}

// clientEnded says that the client has not ended yet, or "".
func clientEnded(pod *corev1.Pod) string {
	if terminated(pod) == nil {
		return fmt.Sprintf("pod %s has not ended its proofs", pod.Name)
	}
	return ""
}

// terminated is how the application's container ended, or nil.
func terminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	for i := range pod.Status.ContainerStatuses {
		if s := &pod.Status.ContainerStatuses[i]; s.Name == containerApplication {
			return s.State.Terminated
		}
	}
	return nil
}

// addresses are a pod's addresses, one of each family.
func addresses(pod *corev1.Pod) (out []netip.Addr) {
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// eventLimit bounds the look at events: what is missing without them is an explanation.
const eventLimit = 5 * time.Second

// lastEvent is the newest warning about a pod as a part of a sentence, or "" if there is none or events may not be read.
func (t *Tester) lastEvent(ctx context.Context, pod string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventLimit)
	defer cancel()
	list, err := t.Client.CoreV1().Events(t.pods.namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.name=" + pod + ",type=" + corev1.EventTypeWarning, Limit: cluster.PageSize,
	})
	if err != nil || len(list.Items) == 0 {
		return ""
	}
	last := slices.MaxFunc(list.Items, func(a, b corev1.Event) int { return cluster.LastSeen(&a).Compare(cluster.LastSeen(&b)) })
	return fmt.Sprintf("; its last event: %s: %s", last.Reason, short(last.Message))
}
