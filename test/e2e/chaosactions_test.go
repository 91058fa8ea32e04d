package e2e

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/test/e2e/chaos"
)

// onPod does what is planned for a victim.
func (r *chaosRun) onPod(ctx context.Context, a chaos.Action) error {
	pod, netns := r.look(a.Target)
	if pod == nil {
		return errors.New("there is no such pod now")
	}
	switch a.Kind {
	case chaos.DeletePod:
		seconds := int64(a.Number % 2) // by force, or in order
		return r.pods().Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &seconds})
	case chaos.StopSandbox, chaos.RemoveSandbox:
		return r.endSandbox(ctx, pod, a.Kind == chaos.RemoveSandbox)
	case chaos.Edit:
		return r.patch(ctx, pod, keyExcludeOutbound, map[bool]any{true: editedPort, false: nil}[pod.Annotations[keyExcludeOutbound] == ""])
	case chaos.OptOut:
		return r.optOut(ctx, pod, netns, a.Lasting)
	default:
		return r.rewrite(ctx, pod, netns, a)
	}
}

// endSandbox ends a pod's sandbox behind the kubelet's back. Containers are removed one by one, as the kubelet does: only so is containerd 2.4.2
// sure to go on.
func (r *chaosRun) endSandbox(ctx context.Context, pod *corev1.Pod, remove bool) error {
	s, err := r.findSandbox(ctx, pod)
	if err != nil {
		return err
	}
	_, err = r.runtime.StopPodSandbox(ctx, &criv1.StopPodSandboxRequest{PodSandboxId: s.ID})
	if err != nil || !remove {
		return err
	}
	list, err := r.runtime.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{PodSandboxId: s.ID}})
	if err != nil {
		return err
	}
	for _, c := range list.Containers {
		if _, err := r.runtime.RemoveContainer(ctx, &criv1.RemoveContainerRequest{ContainerId: c.Id}); err != nil {
			return err
		}
	}
	_, err = r.runtime.RemovePodSandbox(ctx, &criv1.RemovePodSandboxRequest{PodSandboxId: s.ID})
	return err
}

// patch sets one annotation, or takes it away.
func (r *chaosRun) patch(ctx context.Context, pod *corev1.Pod, key string, value any) error {
	_, err := r.pods().Patch(ctx, pod.Name, types.MergePatchType, annotationPatch(r.t, map[string]any{key: value}), metav1.PatchOptions{})
	return err
}

// optOut has a pod opt out, and in again a while after its rules are gone, or were to go.
func (r *chaosRun) optOut(ctx context.Context, pod *corev1.Pod, netns string, lasting time.Duration) error {
	uid := string(pod.UID)
	r.hold(uid, netns)
	defer func() { r.judge.Release(uid, r.agents.clock()) }()
	failed := r.patch(ctx, pod, keyInitialize, "false") // an API server that is killed may have done it all the same
	for deadline := time.Now().Add(5 * time.Second); failed == nil && time.Now().Before(deadline) && isNamespace(netns); pause(ctx, pollEvery) {
		if text, err := programmed(ctx, netns); err == nil && !strings.Contains(text, "chain") {
			break
		}
	}
	pause(ctx, lasting)
	err := failed
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline) && ctx.Err() == nil; pause(ctx, pollEvery) {
		if err = r.patch(ctx, pod, keyInitialize, nil); err == nil || strings.Contains(err.Error(), "not found") {
			return failed
		}
	}
	return err
}

// hold excuses a pod from now on, and says where to look for its repair.
func (r *chaosRun) hold(uid, netns string) {
	r.mu.Lock()
	r.touched[uid] = netns
	r.mu.Unlock()
	r.judge.Hold(uid)
}

const ourTable = "inet pod-network-controller"

// scripts change what is in a pod's network namespace. What is not the agent's is put back as it was.
var scripts = map[chaos.Kind]string{
	chaos.DeleteTable:   `nft delete table ` + ourTable,
	chaos.FlushTable:    `nft flush table ` + ourTable,
	chaos.RemoveAddress: `ip -6 address delete ::6/128 dev lo`,
	chaos.FlushIPRules: `ip -4 rule flush; ip -4 rule add pref 32766 lookup main; ip -4 rule add pref 32767 lookup default
		ip -6 rule flush; ip -6 rule add pref 32766 lookup main`,
	chaos.FillTable: `{ echo add table ` + ourTable + `; echo add chain ` + ourTable + ` chaos
		seq 3000 | sed 's/.*/add rule ` + ourTable + ` chaos counter/'; } | nft -f -`,
	chaos.AddForeign: `nft -f - <<'X'
		table inet chaos-foreign
		delete table inet chaos-foreign
		table inet chaos-foreign { chain out { type filter hook output priority 0; policy accept; tcp dport 8080 counter accept; }; }
X`,
	chaos.FillForeign: `{ echo table inet chaos-full; echo delete table inet chaos-full; echo add table inet chaos-full; echo add chain inet chaos-full chaos
		seq 5000 | sed 's/.*/add rule inet chaos-full chaos counter/'; } | nft -f -`,
}

var (
	handles = regexp.MustCompile(`(?m)^\t\t.*counter.*# handle (\d+)$`)
	chains  = regexp.MustCompile(`(?m)^\tchain (\S+) {`)
)

// rewrite changes what is in a pod's network namespace. The pod is excused from before that until its rules are right again, if the
// rules are the agent's.
func (r *chaosRun) rewrite(ctx context.Context, pod *corev1.Pod, netns string, a chaos.Action) error {
	if netns == "" || !isNamespace(netns) {
		return errors.New("the pod has no network namespace now")
	}
	if a.Kind.Touches() {
		uid := string(pod.UID)
		if !r.mayTouch(uid) {
			return errors.New("left out: the agent would take it for somebody who keeps rewriting")
		}
		r.hold(uid, netns)
		defer func() { r.judge.Release(uid, r.agents.clock()) }()
	}
	script := scripts[a.Kind]
	if script == "" {
		text, err := inNamespace(ctx, netns, "nft -a list table "+ourTable)
		if err != nil {
			return err
		}
		if script = ofText(text, a); script == "" {
			return errors.New("the pod has no rules now")
		}
		r.log("%s: %s", a, script)
	}
	_, err := inNamespace(ctx, netns, script)
	return err
}

// The agent calls a pod contended after contendedAfter repairs, none of them longer than calmTime after the one before, and lets it
// wait. That has tests of its own.
const (
	contendedAfter = 3
	calmTime       = time.Minute
)

// mayTouch reports whether a pod's rules may be changed once more, and remembers that they were.
func (r *chaosRun) mayTouch(uid string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if times := r.touches[uid]; len(times) > 0 && now.Sub(times[len(times)-1]) > calmTime+2*r.judge.Bound {
		r.touches[uid] = nil
	}
	if len(r.touches[uid]) == contendedAfter-1 {
		return false
	}
	r.touches[uid] = append(r.touches[uid], now)
	return true
}

// ofText chooses a rule to delete, or a chain in which all is accepted from now on.
func ofText(text string, a chaos.Action) string {
	here := ""
	var rules []string
	for line := range strings.Lines(text) {
		if m := chains.FindStringSubmatch(line); m != nil {
			here = m[1]
		}
		if m := handles.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			rules = append(rules, fmt.Sprintf("nft delete rule %s %s handle %s", ourTable, here, m[1]))
		}
	}
	found := chains.FindAllStringSubmatch(text, -1)
	if len(found) == 0 || len(rules) == 0 {
		return ""
	}
	if a.Kind == chaos.DeleteRule {
		return rules[a.Number%len(rules)]
	}
	return fmt.Sprintf("nft insert rule %s %s counter accept", ourTable, found[a.Number%len(found)][1])
}
