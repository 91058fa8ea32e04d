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
		if len(wrong) == 0 {
			return nil
		}
		if time.Since(began) > convergeWithin && !late {
			late = true
			r.fault("%s after the calm began: %s", convergeWithin, strings.Join(wrong, "; "))
		}
		return fmt.Errorf("%s", strings.Join(wrong, "; "))
	})
	took := time.Since(began)
	r.worst = max(r.worst, took)
	r.log("all is right after %.1f s of calm", took.Seconds())
}

// awaitNode waits until the node starts a pod that the agent has nothing to do with: a kubelet that was restarted looks at its machine
// first, and at pods some time later.
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
	r.log("the node starts pods again after %.1f s", time.Since(began).Seconds())
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

// wrong lists what is not as it should be when all is calm.
func (r *chaosRun) wrong(ctx context.Context, since time.Time) (wrong []string) {
	if _, err := r.findAgent(ctx); err != nil {
		wrong = append(wrong, "the agent: "+err.Error())
	}
	m, err := r.readMetrics(ctx)
	if err != nil {
		wrong = append(wrong, "its metrics: "+err.Error())
	}
	for name, n := range map[string]float64{
		"contended": m.sum(metricPrefix + "contended_pods"), "preempted": m.sum(metricPrefix + "preempted_pods"),
		"failed": m.sum(metricPrefix+"pods", `state="failed"`),
	} {
		if n != 0 {
			wrong = append(wrong, fmt.Sprintf("%v pods are %s", n, name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.specs)) {
		if err := r.rightPod(ctx, name, since); err != nil {
			wrong = append(wrong, name+": "+err.Error())
		}
	}
	return wrong
}

// rightPod wants a pod to be ready, to say that it is initialized, to hold the rules that it asks for, and its connections to come to
// its proxy.
func (r *chaosRun) rightPod(ctx context.Context, name string, since time.Time) error {
	pod, err := r.pods().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := hasStatus(statusInitialized)(pod); err != nil {
		return err
	}
	if c := conditionOf(pod); c.Reason != "Initialized" {
		return fmt.Errorf("its condition is %s", c.Reason)
	}
	if err := readyOrNot(pod); err != nil {
		return err
	}
	seen, netns := r.look(name)
	if seen == nil || seen.UID != pod.UID || netns == "" {
		return fmt.Errorf("its network namespace is not known yet")
	}
	text, err := programmed(ctx, netns)
	if err != nil {
		return err
	}
	if want := r.references[asks(name, strings.HasSuffix(name, "edited"))]; text != want {
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
	pause(r.t.Context(), r.judge.Bound)
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
	row("longest way to calm", "%.1f s (may take %s)", r.worst.Seconds(), convergeWithin)
	row("the agent at the start", "%+v", before)
	row("the agent at the end", "%+v", now)
	row("broken invariants", "%d", len(r.judge.Faults()))
	_ = w.Flush()
	r.t.Logf("what chaos did, and what it found:\n%s", text.String())
}
