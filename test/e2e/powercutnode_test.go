package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"istio-pod-network-controller/test/e2e/chaos"
)

// awaitCaptured waits until every pod is captured in a sandbox of this boot, and deleted pods have gone. It returns the captured pods' UIDs.
func (r *powerRun) awaitCaptured(row *cutRow, booted time.Time) (captured map[string]bool) {
	r.t.Helper()
	captured = map[string]bool{}
	eventually(r.t, "the agent's answer", func(ctx context.Context) error {
		_, err := r.readMetrics(ctx)
		return err
	})
	agent := time.Now()
	eventually(r.t, "all pods to be captured", func(ctx context.Context) error {
		list, err := r.pods().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		sandboxes, err := r.readySandboxes(ctx)
		if err != nil {
			return err
		}
		var all error
		for i := range list.Items {
			pod := &list.Items[i]
			if captured[string(pod.UID)] {
				continue
			}
			if pod.DeletionTimestamp != nil {
				all = errors.Join(all, fmt.Errorf("pod %s is still there", pod.Name))
				continue
			}
			sandbox := sandboxes[string(pod.UID)]
			if err := r.capturedPod(ctx, pod, sandbox, booted); err != nil {
				all = errors.Join(all, fmt.Errorf("%s: %w", pod.Name, err))
				continue
			}
			captured[string(pod.UID)] = true
			r.measure(row, pod, sandbox, agent)
		}
		return all
	})
	row.agent, row.captured, row.pods = agent.Sub(booted), time.Since(booted), len(captured)
	if wait := row.agent - row.kubelet; wait > agentWithin {
		r.fault("cut %d: the agent answered %.1f s after the kubelet was ready", len(r.rows), wait.Seconds())
	}
	return captured
}

// watchStarts wants each pod's rules to be right within rulesWithin of its first container's start, until end is called.
func (r *powerRun) watchStarts(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var watching, looks sync.WaitGroup
	began := map[string]bool{}
	look := func(e startedEvent) {
		if pod, _ := r.look(e.pod); pod != nil && e.pod != control && !e.sandbox && !began[e.pod] {
			began[e.pod] = true
			looks.Go(func() { r.awaitRules(ctx, pod, e.at) })
		}
	}
	watching.Go(func() {
		for ; ctx.Err() == nil; pause(ctx, 50*time.Millisecond) {
			_ = r.started(ctx, r.name, look) // a runtime that starts has no events yet
		}
	})
	return func() { cancel(); watching.Wait(); looks.Wait() }
}

// awaitRules says as a fault that a pod's rules are not right, by a look that began too late after its container's start.
func (r *powerRun) awaitRules(ctx context.Context, pod *corev1.Pod, started time.Time) {
	for ; ctx.Err() == nil; pause(ctx, 50*time.Millisecond) {
		late := time.Since(started) > rulesWithin
		err := r.hasRules(ctx, pod)
		if err == nil {
			return
		}
		if late && ctx.Err() == nil {
			r.fault("cut %d: %s has run for more than %s: %v", len(r.rows), pod.Name, rulesWithin, err)
			return
		}
	}
}

// measure notes how long a pod has waited since both it and the agent were there, and its containers ran.
func (r *powerRun) measure(row *cutRow, pod *corev1.Pod, sandbox *criv1.PodSandbox, agent time.Time) {
	since := time.Unix(0, sandbox.CreatedAt)
	if agent.After(since) {
		since = agent
	}
	for _, c := range pod.Status.ContainerStatuses {
		// Its time has no fractions of a second: what was started in this second may have been started at its end.
		if c.State.Running != nil && c.State.Running.StartedAt.Add(time.Second).After(since) {
			since = c.State.Running.StartedAt.Add(time.Second)
		}
	}
	took := max(0, time.Since(since))
	row.slowest = max(row.slowest, took)
	if took > capturedWithin {
		r.fault("cut %d: %s was captured %.1f s after its sandbox, its containers and the agent were there", len(r.rows), pod.Name, took.Seconds())
	}
}

// readySandboxes returns the pods' newest sandboxes that run, by the pod's UID.
func (r *powerRun) readySandboxes(ctx context.Context) (map[string]*criv1.PodSandbox, error) {
	list, err := r.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{
		State: &criv1.PodSandboxStateValue{State: criv1.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return nil, err
	}
	newest := map[string]*criv1.PodSandbox{}
	for _, item := range list.Items {
		if uid := item.GetMetadata().GetUid(); newest[uid] == nil || newest[uid].CreatedAt < item.CreatedAt {
			newest[uid] = item
		}
	}
	return newest, nil
}

// capturedPod wants a pod's report, rules and connections to be right in a sandbox of this boot.
func (r *powerRun) capturedPod(ctx context.Context, pod *corev1.Pod, sandbox *criv1.PodSandbox, booted time.Time) error {
	if sandbox == nil || time.Unix(0, sandbox.CreatedAt).Before(booted) {
		return fmt.Errorf("it has no sandbox yet: %s", pod.Status.Phase)
	}
	if err := isRunning(pod); err != nil || pod.Name == control {
		return err
	}
	if err := hasStatus(statusInitialized)(pod); err != nil {
		return err
	}
	if d, err := detailsOf(pod); err != nil || d.Sandbox != sandbox.Id {
		return fmt.Errorf("its report is of sandbox %.13s, it has %.13s: %w", d.Sandbox, sandbox.Id, err)
	}
	if r.specs[pod.Name] != nil {
		for _, d := range []chaos.Direction{chaos.Inbound, chaos.Outbound} {
			if !r.judge.LastProxied(d, string(pod.UID)).After(booted) {
				return fmt.Errorf("no %s connection has come to its proxy", d)
			}
		}
	}
	return r.hasRules(ctx, pod)
}

// hasRules wants a pod's newest sandbox to hold what the pod held before the first cut.
func (r *powerRun) hasRules(ctx context.Context, pod *corev1.Pod) error {
	s, err := r.findSandbox(ctx, pod)
	if err != nil {
		return err
	}
	text, err := programmed(ctx, s.here(r.cluster))
	if err != nil {
		return err
	}
	want := r.rules["sidecar-0"] // a starter asks for the same
	if r.rules[pod.Name] != "" {
		want = r.rules[pod.Name]
	}
	if text != want {
		return fmt.Errorf("its rules are not what they were: %s", firstDifference(text, want))
	}
	return nil
}

// leftAfter is how long what a dead boot has left may take to go. The kubelet removes dead sandboxes of its own in a minute's rhythm.
const leftAfter = 90 * time.Second

// awaitNothingLeft returns what is still left of the dead boot in the end, and says so as a fault.
func (r *powerRun) awaitNothingLeft() error {
	var left error
	for deadline := time.Now().Add(leftAfter); time.Now().Before(deadline); pause(r.t.Context(), 500*time.Millisecond) {
		if left = r.leftovers(r.t.Context()); left == nil {
			return nil
		}
	}
	r.fault("cut %d: something of the dead boot is left: %v", len(r.rows), left)
	return left
}

// leftovers names what belongs to no sandbox that runs:
//   - homes of proxies, and the agent's notes,
//   - containers of proxies,
//   - network namespaces,
//   - logs of pods that are gone,
//   - files in the CNI's directories that were not there before.
func (r *powerRun) leftovers(ctx context.Context) error {
	sandboxes, err := r.readySandboxes(ctx)
	if err != nil {
		return err
	}
	live, uids := map[string]bool{}, map[string]bool{}
	for uid, s := range sandboxes {
		live[uid+"."+s.Id], live[s.Id], uids[uid] = true, true, true
	}
	var left []error
	for _, pattern := range []string{sidecarRoot + "/*.*", sidecarRoot + "/routes/*"} {
		for _, name := range r.glob(pattern) {
			if !live[filepath.Base(name)] {
				left = append(left, fmt.Errorf("%s", name))
			}
		}
	}
	for _, name := range r.glob("var/log/pods/" + r.name + "_*") {
		if _, uid, _ := strings.Cut(strings.TrimPrefix(filepath.Base(name), r.name+"_"), "_"); !uids[uid] {
			left = append(left, fmt.Errorf("%s", name))
		}
	}
	proxies, err := r.managed.proxies(ctx)
	for _, c := range proxies {
		if !live[c.PodSandboxId] || c.State != criv1.ContainerState_CONTAINER_RUNNING {
			left = append(left, fmt.Errorf("container %.13s of a proxy, %s", c.Id, c.State))
		}
	}
	now, diskErr := r.onDisk(ctx)
	if now != r.disk {
		left = append(left, fmt.Errorf("the CNI's directories: %s", firstDifference(now, r.disk)))
	}
	return errors.Join(append(left, err, diskErr, r.strayNamespaces(ctx))...)
}

// glob returns paths below the node's root.
func (r *powerRun) glob(pattern string) []string {
	names, _ := filepath.Glob(filepath.Join(r.node.NodeRoot, pattern)) // the pattern is a constant
	return names
}

// strayNamespaces wants each network namespace to be that of a sandbox which the runtime knows, dead or alive.
func (r *powerRun) strayNamespaces(ctx context.Context) error {
	list, err := r.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, item := range list.Items {
		status, err := r.runtime.PodSandboxStatus(ctx, &criv1.PodSandboxStatusRequest{PodSandboxId: item.Id, Verbose: true})
		if err != nil {
			return err
		}
		s, err := readSandbox(item.Id, status.Info["info"])
		if err != nil {
			return err
		}
		used[filepath.Base(s.NetNS)] = true
	}
	return r.strayFiles(used)
}

// onDisk is what the CNI's directories hold, which a power cut does not empty: names and sums.
func (r *powerRun) onDisk(ctx context.Context) (string, error) {
	var text strings.Builder
	for _, dir := range []string{"etc/cni/net.d", "opt/cni/bin"} {
		cmd := exec.CommandContext(ctx, "sh", "-c", "find . -type f -exec sha256sum {} + | sort -k 2")
		cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Join(r.node.NodeRoot, dir), &text, os.Stderr
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("read %s: %w", dir, err)
		}
	}
	return text.String(), nil
}
