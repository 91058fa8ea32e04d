package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/test/e2e/chaos"
)

// calm takes chaos' own wishes back, and wants all to be right soon.
func (r *chaosRun) calm() {
	r.t.Helper()
	eventually(r.t, "what chaos did to be undone", func(ctx context.Context) error {
		if err := r.startDead(ctx); err != nil {
			return err
		}
		return r.askAsBefore(ctx)
	})
	r.awaitNode()
	began := time.Now()
	r.log("calm")
	late := false
	eventually(r.t, "all to be right", func(ctx context.Context) error {
		if err := r.startDead(ctx); err != nil {
			return err
		}
		wrong := r.wrong(ctx, began)
		overdue := slices.DeleteFunc(slices.Clone(wrong), func(c complaint) bool { return time.Since(c.since) < convergeWithin })
		if len(overdue) > 0 && !late {
			late = true
			r.fault("not right after %s of calm: %v", convergeWithin, joined(overdue))
		}
		return joined(wrong)
	})
	took := time.Since(began)
	r.worst = max(r.worst, took)
	r.log("all is right after %.1f s of calm", took.Seconds())
}

// awaitNode waits until the node starts a pod that the agent has nothing to do with, and reaches the API server: a kubelet that was restarted
// looks at its machine first, and at pods some time later. A kube-proxy that has seen the API server leave its Service waits for up to a
// minute before it looks again.
func (r *chaosRun) awaitNode() {
	r.t.Helper()
	began := time.Now()
	other := &space{cluster: r.cluster, name: metav1.NamespaceSystem}
	now := int64(0)
	gone := func(ctx context.Context) error {
		err := other.pods().Delete(ctx, "chaos-other", metav1.DeleteOptions{GracePeriodSeconds: &now})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is still there"))
	}
	eventually(r.t, "another pod to be gone", gone)
	eventually(r.t, "another pod", func(ctx context.Context) error {
		if err := r.startDead(ctx); err != nil { // a scheduler ends some seconds after its API server did
			return err
		}
		pod, err := other.pods().Create(ctx, newPod("chaos-other", nil, appContainer()), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			pod, err = other.pods().Get(ctx, "chaos-other", metav1.GetOptions{})
		}
		if err != nil {
			return err
		}
		return isRunning(pod)
	})
	eventually(r.t, "the other pod to be gone", gone)
	eventually(r.t, "the API server's Service", r.reachesAPIServer)
	eventually(r.t, "the end of an update of the agent", r.rolledOut)
	r.log("the node works again after %.1f s", time.Since(began).Seconds())
}

// reachesAPIServer returns an error unless the node has a way to the API server that agents use.
func (r *chaosRun) reachesAPIServer(ctx context.Context) error {
	service, err := r.api.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return err
	}
	return kc(ctx, "node", "--", "timeout", "1", "bash", "-c", "exec 3<>/dev/tcp/"+service.Spec.ClusterIP+"/443")
}

// rolledOut returns an error while an update of the agent goes on.
func (r *chaosRun) rolledOut(ctx context.Context) error {
	set, err := r.api.AppsV1().DaemonSets(agentName).Get(ctx, agentName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if set.Status.ObservedGeneration < set.Generation || set.Status.UpdatedNumberScheduled < set.Status.DesiredNumberScheduled {
		return fmt.Errorf("the update goes on: %+v", set.Status)
	}
	_, err = r.findAgent(ctx)
	return err
}

// askAsBefore takes the annotations away that chaos has left.
func (r *chaosRun) askAsBefore(ctx context.Context) error {
	list, err := r.pods().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		pod := &list.Items[i]
		for _, key := range []string{keyInitialize, keyExcludeOutbound} {
			if want := r.specs[pod.Name].Annotations[key]; want == "" && pod.Annotations[key] != "" {
				if err := r.patch(ctx, pod, key, nil); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// complaint is what is not as it should be, and since when it could be.
type complaint struct {
	error
	since time.Time
}

func joined(list []complaint) error {
	var all error
	for _, c := range list {
		all = errors.Join(all, c.error)
	}
	return all
}

// wrong lists what is not as it should be when all is calm.
func (r *chaosRun) wrong(ctx context.Context, calm time.Time) (list []complaint) {
	add := func(since time.Time, format string, args ...any) {
		list = append(list, complaint{fmt.Errorf(format, args...), since})
	}
	if _, err := r.findAgent(ctx); err != nil {
		add(calm, "the agent: %v", err)
	}
	m, err := r.readMetrics(ctx)
	if err != nil {
		add(calm, "its metrics: %v", err)
	}
	for name, n := range map[string]float64{
		"contended": m.sum(metricPrefix + "contended_pods"), "preempted": m.sum(metricPrefix + "preempted_pods"),
		"failed": m.sum(metricPrefix+"pods", `state="failed"`),
	} {
		if n != 0 {
			add(calm, "%v pods are %s", n, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.specs)) {
		pod, err := r.pods().Get(ctx, name, metav1.GetOptions{})
		since := calm
		if err == nil {
			since = startedAfter(pod, calm)
			err = r.rightPod(ctx, pod, calm)
		}
		if err != nil {
			add(since, "%s: %v", name, err)
		}
	}
	return list
}

// startedAfter is when the kubelet had started all of a pod's containers, or the calm began. It is now while it has not: what chaos has
// ended again and again the kubelet starts after a back-off of its own, and the agent cannot be faster.
func startedAfter(pod *corev1.Pod, calm time.Time) time.Time {
	last := calm
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Running == nil {
			return time.Now()
		}
		if started := status.State.Running.StartedAt.Time; started.After(last) {
			last = started
		}
	}
	if len(pod.Status.ContainerStatuses) == 0 {
		return time.Now()
	}
	return last
}

// rightPod wants a pod to be ready, to say that it is initialized, to hold the rules that it asks for, and its connections to come to
// its proxy.
func (r *chaosRun) rightPod(ctx context.Context, pod *corev1.Pod, since time.Time) error {
	if err := hasStatus(statusInitialized)(pod); err != nil {
		return err
	}
	if c := conditionOf(pod); c.Reason != "Initialized" {
		return fmt.Errorf("its condition is %s", c.Reason)
	}
	if err := readyOrNot(pod); err != nil {
		return err
	}
	seen, netns := r.look(pod.Name)
	if seen == nil || seen.UID != pod.UID || netns == "" {
		return fmt.Errorf("its network namespace is not known yet")
	}
	text, err := programmed(ctx, netns)
	if err != nil {
		return err
	}
	if want := r.references[asks(pod.Name, strings.HasSuffix(pod.Name, "edited"))]; text != want {
		return fmt.Errorf("it holds %d bytes of rules, want %d: %s", len(text), len(want), firstDifference(text, want))
	}
	for _, d := range []chaos.Direction{chaos.Inbound, chaos.Outbound} {
		if !r.judge.LastProxied(d, string(pod.UID)).After(since) {
			return fmt.Errorf("no %s connection has come to its proxy", d)
		}
	}
	return nil
}

func firstDifference(have, want string) string {
	h, w := strings.Split(have, "\n"), strings.Split(want, "\n")
	for i := range min(len(h), len(w)) {
		if h[i] != w[i] {
			return fmt.Sprintf("%q, want %q", h[i], w[i])
		}
	}
	return "one begins like the other"
}

// warmAgent starts a fresh agent, and gives what it holds when it has looked at all pods.
func (r *chaosRun) warmAgent() held {
	r.t.Helper()
	r.rollAgent(r.t)
	r.calm()
	pause(r.t.Context(), r.verifyInterval(r.t)) // each pod was checked
	before := r.held(r.t)
	r.log("a fresh agent, warm: %+v", before)
	return before
}

// wantAgentAsBefore compares an agent that has lived through chaos with a fresh one.
func (r *chaosRun) wantAgentAsBefore(before held) {
	r.t.Helper()
	within(r.t, time.Minute, "an agent that holds what a fresh one does", func(ctx context.Context) error {
		now, err := r.readHeld(ctx)
		now.series = 0 // an agent that has met more has more to tell; TestChurnLeavesNothing looks at what pods leave
		return errors.Join(err, now.above(before))
	})
	r.awaitTidyNode(r.t, r.agent(r.t))
}

// wantBystandersUntouched wants the kernel's objects to be the ones that were there at the start, by their handles.
func (r *chaosRun) wantBystandersUntouched() {
	r.t.Helper()
	for _, name := range r.bystanders() {
		_, netns := r.look(name)
		text, err := inNamespace(r.t.Context(), netns, "nft -a -s list ruleset")
		if err != nil || text != r.handles[name] {
			r.fault("the rules of the bystander %s were written again: %v: %s", name, err, firstDifference(text, r.handles[name]))
		}
	}
}

// table prints what was done and what was found.
func (r *chaosRun) table(before held) {
	r.t.Helper()
	c, now := r.judge.Counts(), r.held(r.t)
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	r.mu.Lock()
	for _, key := range slices.Sorted(maps.Keys(r.done)) {
		row(key, "%d times, %d without success", r.done[key], r.failed[key])
	}
	row("bystanders that the node called not ready", "%d times", r.flaps)
	r.mu.Unlock()
	for _, d := range []chaos.Direction{chaos.Inbound, chaos.Outbound} {
		row(string(d)+" connections", "%d came to the proxy, %d passed it by in pods that chaos had rewritten, %d in others", c.Proxied[d], c.Excused[d], c.Direct[d])
	}
	r.agents.mu.Lock()
	row("repairs seen", "%d, the longest after %.1f s of a working agent (may take %s)", c.Repairs, c.WorstRepair.Seconds(), r.judge.Bound)
	row("drift as the agents told it", "%v", r.agents.drift())
	row("agents", "%d", len(r.agents.agents))
	row("largest RSS of an agent", "%.1f MiB", r.agents.maxRSS/(1<<20))
	r.agents.mu.Unlock()
	row("longest way to calm", "%.1f s, with what the kubelet needs to start pods", r.worst.Seconds())
	row("the agent at the start", "%+v", before)
	row("the agent at the end", "%+v", now)
	row("broken invariants", "%d", len(r.judge.Faults()))
	_ = w.Flush()
	r.t.Logf("what chaos did, and what it found:\n%s", text.String())
}
