package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"istio-pod-network-controller/internal/agentstatus"
)

// Agent is one of the agents' pods.
type Agent struct {
	Namespace, Name, Node string
	Ready                 bool
	Since                 time.Time // when it became ready; zero: it is not
	Waiting               string    // why a container does not run, in the kubelet's words
	Crashes               Crashes
	Status                *agentstatus.Status // nil: it has written none, or Fault says why it cannot be read
	Fault                 string
	Pod                   *corev1.Pod
}

// Crashes are the ends of an agent's container.
type Crashes struct {
	Restarts int32
	// Last says how it ended the last time, with its last words.
	Last string
}

// manyCrashes is how many restarts an agent that is not ready may have before it counts as crashing: a node that starts may cost it some.
const manyCrashes = 3

// Crashing reports whether the agent ends again and again. It is not ready then.
func (a Agent) Crashing() bool { return !a.Ready && a.Crashes.Restarts >= manyCrashes }

// Creating reports whether nothing is known to hinder the agent's start.
func (a Agent) Creating() bool {
	reason, _, _ := strings.Cut(a.Waiting, " ")
	return reason == "" || reason == "ContainerCreating" || reason == "PodInitializing"
}

// startTime is how long the creation of an agent's container may take.
const startTime = time.Minute

// Stuck reports whether the agent does not run, and is not about to.
func (a Agent) Stuck(now time.Time) bool {
	late := a.Pod != nil && now.Sub(a.Pod.CreationTimestamp.Time) > startTime
	return !a.Ready && a.Waiting != "" && (late || !a.Creating())
}

// String is a part of a sentence.
func (c Crashes) String() string {
	return strings.TrimSuffix(fmt.Sprintf("crashed %d times, the last time with %s", c.Restarts, c.Last), ", the last time with ")
}

// Rollback says how to leave a release whose agents crash.
const Rollback = "helm rollback brings the last release back (helm history shows them)"

// crashesOf returns how a pod's containers have ended.
func crashesOf(pod *corev1.Pod) (out Crashes) {
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if c.RestartCount <= out.Restarts {
			continue
		}
		out.Restarts = c.RestartCount
		end := c.LastTerminationState.Terminated
		if end == nil {
			end = c.State.Terminated
		}
		if end != nil {
			out.Last = fmt.Sprintf("exit code %d", end.ExitCode)
			if words := cmp.Or(lastLine(end.Message), end.Reason); words != "" {
				out.Last += " (" + words + ")"
			}
		}
	}
	return out
}

// lastLine returns the last line of a termination message: the agent's error.
func lastLine(message string) string {
	lines := strings.Split(strings.TrimSpace(message), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}

// Agents lists the agents of a namespace and a node; either may be empty for all. They are sorted by node, the agent in charge first.
func Agents(ctx context.Context, client kubernetes.Interface, namespace, node string) ([]Agent, error) {
	o := metav1.ListOptions{LabelSelector: agentstatus.Label}
	if node != "" {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	agents, err := All(ctx, client.CoreV1().Pods(namespace).List, o, func(pod *corev1.Pod) (Agent, bool) { return agentOf(pod), agentstatus.IsAgent(pod) })
	slices.SortStableFunc(agents, func(a, b Agent) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), agentstatus.Compare(a.Pod, b.Pod))
	})
	return agents, err
}

// Container returns the agent's container of a pod; the zero value if it has none.
func Container(spec *corev1.PodSpec) corev1.Container {
	if i := slices.IndexFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == agentstatus.Container }); i >= 0 {
		return spec.Containers[i]
	}
	return corev1.Container{}
}

// Flag returns the value that a container's arguments give a flag; "" if they do not.
func Flag(c corev1.Container, name string) string {
	for _, arg := range c.Args {
		if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			return value
		}
	}
	return ""
}

func agentOf(pod *corev1.Pod) Agent {
	a := Agent{
		Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, Ready: agentstatus.Ready(pod), Since: agentstatus.ReadySince(pod), Pod: pod, Crashes: crashesOf(pod),
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && w.Reason != "" && a.Waiting == "" {
			a.Waiting = strings.TrimSpace(w.Reason + " " + w.Message)
		}
	}
	if value, ok := pod.Annotations[agentstatus.Annotation]; ok {
		s, err := agentstatus.Parse(value)
		if err != nil {
			a.Fault = err.Error()
		} else {
			a.Status = &s
		}
	}
	return a
}

// NodeReady returns a node's condition Ready; without one its status is empty.
func NodeReady(node *corev1.Node) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}
