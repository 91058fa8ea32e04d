package check

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"istio-pod-network-controller/internal/intent"
)

// creating is an agent of n1 whose container is not created, with warnings about it.
func creating(events ...agentEvent) func(f *Facts) {
	return func(f *Facts) {
		f.Agents[0].Ready, f.Agents[0].Waiting, f.Agents[0].Status = false, "ContainerCreating", nil
		f.DaemonSets[0].Status.NumberReady, f.events = 1, events
		f.Nodes[0].Status.NodeInfo.KubeletVersion = "v1.36.1+k3s1"
		f.DaemonSets[0].Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "containerd", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/run/containerd"}}}}
	}
}

func warned(name, reason, message string) agentEvent {
	kind := "Pod"
	if name == "agent" {
		kind = "DaemonSet"
	}
	return agentEvent{kind: kind, name: name, reason: reason, message: message, last: now}
}

// The advice names the chart's value. What the kubelet and the API server say are their own words.
func TestAgentsReady_agentThatDoesNotStart_saysWhichValue(t *testing.T) {
	waits := func(why string) func(f *Facts) {
		return func(f *Facts) {
			f.DaemonSets[0].Status.NumberReady, f.Agents[0].Ready, f.Agents[0].Waiting = 1, false, why
		}
	}
	mount := warned("agent-n1", "FailedMount", `MountVolume.SetUp failed for volume "containerd" : hostPath type check failed: /run/containerd is not a directory`)
	for name, tc := range map[string]struct {
		change   func(f *Facts)
		want, do string
	}{
		"a runtime's directory that is missing": {creating(mount), "n1: FailedMount MountVolume.SetUp failed", "kubernetesDistribution, runtime.name or runtime.endpoint: they have the node's /run/containerd; node n1 looks like kubernetesDistribution=k3s"},
		"an older event of another kind":        {creating(mount, agentEvent{"Pod", "agent-n1", "FailedMount", "old", now.Add(-time.Minute)}), "is not a directory", "runtime.endpoint"},
		"beside the old agent, in a rollout": {func(f *Facts) {
			creating(mount)(f)
			f.Agents = append(f.Agents, Agent{Node: "n1", Name: "agent-old", Ready: true})
			f.DaemonSets[0].Status.NumberReady, f.DaemonSets[0].Status.UpdatedNumberScheduled = 2, 1
		}, "is not a directory", "kubernetesDistribution"},
		"another volume":           {creating(warned("agent-n1", "FailedMount", `MountVolume.SetUp failed for volume "mine" : not found`)), "not found", "which make volume mine"},
		"a sandbox":                {creating(warned("agent-n1", "FailedCreatePodSandBox", "Failed to create pod sandbox: x")), "FailedCreatePodSandBox", "container runtime"},
		"an image that is missing": {waits(`ImagePullBackOff Back-off pulling image "registry/agent:1"`), "ImagePullBackOff Back-off", "image.repository or image.tag: they make registry/agent:1; or image.pullSecrets"},
		"a secret that is missing": {waits(`CreateContainerConfigError secret "x" not found`), `secret "x"`, "message names"},
		"a first crash": {func(f *Facts) {
			waits("CrashLoopBackOff back-off 10s")(f)
			f.Agents[0].Crashes.Last = "exit code 1 (error: x)"
		}, "exit code 1 (error: x)", "logs AGENT-POD --previous"},
		"a quota": {creating(warned("agent", "FailedCreate", `Error creating: pods "agent-" is forbidden: exceeded quota: q`)), "FailedCreate", "agent.priorityQuota"},
		"a quota, in a rollout": {func(f *Facts) {
			f.DaemonSets[0].Status.UpdatedNumberScheduled = 1
			f.events = []agentEvent{warned("agent", "FailedCreate", "exceeded quota: q")}
		}, "2 of 2 agents are ready: agent: FailedCreate exceeded quota", "agent.priorityQuota"},
		"OpenShift":          {creating(warned("agent", "FailedCreate", `Error creating: pods "agent-" is forbidden: unable to validate against any security context constraint`)), "FailedCreate", "kubernetesDistribution=openshift"},
		"Pod Security":       {creating(warned("agent", "FailedCreate", `Error creating: pods "agent-x" is forbidden: violates PodSecurity "baseline:latest"`)), "violates", "kubectl label namespace agents pod-security.kubernetes.io/enforce=privileged"},
		"a priority class":   {creating(warned("agent", "FailedCreate", `Error creating: pods "agent-" is forbidden: no PriorityClass with name x was found`)), "PriorityClass", "agent.priorityClassName"},
		"a refusing webhook": {creating(warned("agent", "FailedCreate", `Error creating: admission webhook "x" denied the request`)), "denied", "admit the agents"},
		"no node with room":  {creating(warned("agent-new", "FailedScheduling", "0/2 nodes are available: 1 Insufficient cpu")), "Insufficient cpu", "agent.nodeSelector, agent.affinity, agent.tolerations, agent.resources"},
	} {
		t.Run(name, func(t *testing.T) {
			f := goodFacts()
			tc.change(f)
			r := find(Run(f, false), "agents-ready")
			if r.Level != Fail || !strings.Contains(r.Message, tc.want) || !strings.Contains(r.Do, tc.do) {
				t.Errorf("%+v, want %q, do %q", r, tc.want, tc.do)
			}
		})
	}
}

// Events outlive their cause by an hour.
func TestAgentsReady_eventsOfAgentsThatRun_areOver(t *testing.T) {
	f := goodFacts()
	f.events = []agentEvent{
		warned("agent-n1", "FailedMount", "x"), warned("agent", "FailedCreate", "exceeded quota"), warned("agent-gone", "FailedScheduling", "x"), warned("agent-n2", "Unhealthy", "x"),
	}
	if r := find(Run(f, false), "agents-ready"); r.Level != OK {
		t.Errorf("%+v", r)
	}
	f.events = []agentEvent{{"DaemonSet", "agent", "FailedCreate", "exceeded quota", now.Add(-time.Hour)}}
	f.DaemonSets[0].Status.UpdatedNumberScheduled = 1
	if r := find(Run(f, false), "agents-ready"); r.Level != Warn || !strings.Contains(r.Message, "newest version") {
		t.Errorf("of an hour ago: %+v", r)
	}
}

func TestNodesWithoutAgent_agentThatDoesNotRun_doesNotCount(t *testing.T) {
	for waiting, want := range map[string]Level{"": OK, "ImagePullBackOff x": Fail, "CrashLoopBackOff x": Fail, "ContainerCreating": OK} {
		f := goodFacts()
		f.Agents[0].Ready, f.Agents[0].Waiting = false, waiting
		f.Agents[0].Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-time.Second))}}
		if r := find(Run(f, false), "nodes-without-agent"); r.Level != want {
			t.Errorf("%q: %+v", waiting, r)
		}
		f.Agents[0].Pod.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
		if r := find(Run(f, false), "nodes-without-agent"); waiting == "ContainerCreating" && r.Level != Fail {
			t.Errorf("%q for an hour: %+v", waiting, r)
		}
	}
}

func TestGather_warningsAboutAgents_areRead(t *testing.T) {
	event := func(namespace, name, kind, about, reason string, ago time.Duration) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: object(namespace, name), Type: "Warning", Reason: reason, Message: "m", LastTimestamp: metav1.NewTime(now.Add(-ago)),
			InvolvedObject: corev1.ObjectReference{Kind: kind, Name: about},
		}
	}
	f := gather(t, served(t, fake.NewClientset(append(installation(),
		event("agents", "a", "Pod", "agent-1", "FailedMount", time.Minute), event("agents", "b", "DaemonSet", "agent", "FailedCreate", 0),
		event("agents", "c", "Pod", "other", "FailedMount", 0), event("shop", "d", "Pod", "agent-1", "FailedMount", 0))...)), intent.Config{})
	if len(f.events) != 2 || f.events[0].name != "agent" || f.events[1].reason != "FailedMount" || len(f.failed) > 0 {
		t.Errorf("%+v, %+v", f.events, f.failed)
	}
}
