package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"istio-pod-network-controller/test/e2e/chaos"
)

const (
	// powerCuts is how often TestPowerCut cuts the power, unless E2E_POWERCUT_CUTS says otherwise.
	powerCuts = 3
	// capturedWithin is how long a pod may take from the later of its sandbox's start and the agent's first answer.
	capturedWithin = 10 * time.Second
	// agentWithin is how long the agent may take to answer once the kubelet is ready.
	agentWithin = 10 * time.Second
	// rulesWithin is how long a pod's rules may take once its first container has started. They are there before, by NRI.
	rulesWithin = time.Second
	// starters is how many pods start in one of the moments.
	starters = 20
	// control is a pod that does not ask. Its connections show that one that passes a proxy by is seen.
	control = "control"
)

// powerRun is one run of TestPowerCut. Of chaosRun it has the world, the probes and the judge.
type powerRun struct {
	*chaosRun
	managed managed
	// rules are what each pod held before the first cut, by name.
	rules map[string]string
	// disk is what the node's directories of the CNI held then.
	disk    string
	version int
	rows    []*cutRow
}

// cutRow is what was seen of one cut. Times count from the begin of the boot.
type cutRow struct {
	chaos.Cut
	runtime, kubelet, agent, captured time.Duration
	// slowest is the longest wait of a pod that capturedWithin bounds.
	slowest time.Duration
	// pods made connections, in proxied directions; direct passed the proxy by.
	pods, proxied, direct int
	leftovers             error
}

// The power is cut, again and again, while the cluster does this and that. After each cut, with nobody's help:
//
//   - the container runtime and the kubelet start, the node becomes ready, and soon the agent answers;
//   - no connection of a pod that asks passes its proxy by, from its container's first instruction on, and connections are made;
//   - every pod's rules are right when its first container starts;
//   - every pod is captured soon after its new sandbox, and the agent, are there: its condition is that of the new sandbox, its rules are what
//     they were, and connections of both directions come to its proxy;
//   - no pod is lost;
//   - what was begun comes to its end: pods start, go, the agent is updated, proxies are upgraded;
//   - nothing of the dead boot is left.
//
// The seed is printed: E2E_POWERCUT_SEED takes it again. Not parallel: it ends everything.
//
//e2e:rounds powercut
func TestPowerCut(t *testing.T) {
	n, seed := amount(t, "E2E_POWERCUT_CUTS", powerCuts), rand.Uint64() //nolint:gosec // any other seed would do
	if text := os.Getenv("E2E_POWERCUT_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("%d power cuts with the seed %d: POWERCUT_CUTS=%[1]d POWERCUT_SEED=%[2]d does the same again", n, seed)
	r := newPowerRun(t)
	t.Cleanup(r.printTable)
	for _, cut := range chaos.Cuts(seed, n) {
		r.cutOnce(cut)
	}
}

func newPowerRun(t *testing.T) *powerRun {
	t.Helper()
	s := newSpace(t, asked())
	s.awaitPolicy(t)
	objects, err := dynamic.NewForConfig(s.rest)
	must(t, err)
	m := managed{s, s.name, objects}
	m.createProfile(t)
	t.Cleanup(func() { m.deleteProfile(t) })
	r := &powerRun{managed: m, rules: map[string]string{}, chaosRun: &chaosRun{
		space: s, t: t, began: time.Now(), judge: chaos.NewJudge(0), seen: map[string]*corev1.Pod{}, netns: map[string]string{}, told: map[string]bool{},
	}}
	r.serveChaosWorld()
	r.specs = r.powerPods()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { r.every(ctx, 200*time.Millisecond, r.list) })
	for name := range r.specs {
		pod := r.create(t, r.specs[name].DeepCopy())
		if name == control {
			r.judge.Hold(string(pod.UID))
		}
		wg.Go(func() { r.every(ctx, 50*time.Millisecond, func(ctx context.Context) { r.probe(ctx, name) }) })
	}
	for name := range r.specs {
		pod := r.await(t, name, isReadyNow)
		if name == control {
			continue
		}
		r.rules[name], err = programmed(t.Context(), r.sandboxOf(t, pod).here(r.cluster))
		must(t, err)
	}
	r.disk, err = r.onDisk(t.Context())
	must(t, err)
	return r
}

// powerPods dial from their first instruction on: with a proxy of their own, of both kinds, and with one that the agent runs.
func (r *powerRun) powerPods() map[string]*corev1.Pod {
	pods := map[string]*corev1.Pod{}
	for i, name := range []string{"managed-0", "sidecar-0", "managed-1", "sidecar-1", "victim", "tproxy-0"} {
		pod := newPod(name, nil, appContainer(), r.dialContainer(i))
		switch {
		case strings.HasPrefix(name, "managed"): // of IPv4 only, as its proxy: their numbers are even
			pod.Annotations = map[string]string{keySidecar: r.managed.profile}
		case strings.HasPrefix(name, "tproxy"):
			pod.Annotations = tproxy()
			pod.Spec.Containers = append(pod.Spec.Containers, asRoot(proxyContainer("istio-proxy", "-transparent"), "NET_ADMIN"))
		default:
			pod.Spec.Containers = append(pod.Spec.Containers, proxyContainer("istio-proxy"))
		}
		pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: condition}}
		pods[name] = pod
	}
	pods[control] = newPod(control, map[string]string{keyInitialize: "false"}, appContainer(), r.dialContainer(len(pods)))
	return pods
}

// list remembers the pods as they were last seen. An API server that is away changes nothing.
func (r *powerRun) list(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	list, err := r.pods().List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	now := map[string]*corev1.Pod{}
	for i := range list.Items {
		now[list.Items[i].Name] = &list.Items[i]
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = now
}

// cutOnce makes a moment, cuts the power in it, boots, and wants all to become right.
func (r *powerRun) cutOnce(cut chaos.Cut) {
	r.t.Helper()
	row := &cutRow{Cut: cut}
	r.rows = append(r.rows, row)
	r.log("cut %d: %s, after %s", len(r.rows), cut.Moment, cut.After)
	r.make(cut.Moment)
	pause(r.t.Context(), cut.After)
	staying := r.staying()
	must(r.t, kc(r.t.Context(), "powercut"))
	r.reconnect(r.t)
	counts, booted := r.judge.Counts(), time.Now()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	boot := make(chan error, 1)
	go func() { boot <- kc(ctx, "boot") }()
	r.awaitRuntime(ctx)
	row.runtime = time.Since(booted)
	endWatch := r.watchStarts(ctx)
	defer endWatch()
	must(r.t, <-boot)
	row.kubelet = time.Since(booted)
	captured := r.awaitCaptured(row, booted)
	endWatch()
	for uid, name := range staying {
		if !captured[uid] {
			r.fault("cut %d: pod %s (UID %s) is lost", len(r.rows), name, uid)
		}
	}
	r.awaitEnd(cut.Moment)
	row.leftovers = r.awaitNothingLeft()
	now := r.judge.Counts()
	for _, d := range []chaos.Direction{chaos.Inbound, chaos.Outbound} {
		row.proxied += now.Proxied[d] - counts.Proxied[d]
		row.direct += now.Direct[d] - counts.Direct[d]
		if now.Proxied[d] == counts.Proxied[d] {
			r.fault("cut %d: no %s connection came to a proxy, so nothing shows that none passed one by", len(r.rows), d)
		}
		if now.Excused[d] == counts.Excused[d] {
			r.fault("cut %d: no %s connection of the pod %s was seen, which has no proxy", len(r.rows), d, control)
		}
	}
	r.prepareNext()
	r.log("cut %d: %s", len(r.rows), row)
}

// staying names the pods that nobody deletes, by UID.
func (r *powerRun) staying() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := map[string]string{}
	for name, pod := range r.seen {
		if pod.DeletionTimestamp == nil && name != "victim" {
			names[string(pod.UID)] = name
		}
	}
	return names
}

// make begins what the power cut interrupts.
func (r *powerRun) make(m chaos.Moment) {
	r.t.Helper()
	switch m {
	case chaos.Starting:
		for i := range starters {
			// Without a proxy: what is redirected is refused.
			dial := r.dialContainer(i)
			dial.Args = append(dial.Args[:1:1], "-report=0", "-every=300ms", "-timeout=1s", dial.Args[len(dial.Args)-1])
			r.create(r.t, newPod(fmt.Sprintf("starter-%d", i), map[string]string{keyInitialize: "true", keyHoldSeconds: "0"}, dial))
		}
	case chaos.Updating:
		r.patchDaemonSet(r.t, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"rolled": time.Now().String()}}})
	case chaos.Deleting:
		must(r.t, r.pods().Delete(r.t.Context(), "victim", metav1.DeleteOptions{}))
	case chaos.Upgraded:
		r.version++
		r.managed.newVersion(r.t, fmt.Sprint("version ", r.version))
	}
}

// reconnect learns where the node is now.
func (c *cluster) reconnect(t *testing.T) {
	t.Helper()
	out, _ := exec.CommandContext(t.Context(), "kc", "status", "-o", "json").Output() // fails while daemons do not run
	must(t, json.Unmarshal(out, &c.node))
	must(t, c.dialRuntime())
}

// awaitRuntime returns once the container runtime takes connections. The test's own client would look again in seconds only.
func (r *powerRun) awaitRuntime(ctx context.Context) {
	for ; ctx.Err() == nil; pause(ctx, 50*time.Millisecond) {
		if conn, err := net.Dial("unix", r.node.NodeRoot+r.node.RuntimeSocket); err == nil {
			_ = conn.Close()
			return
		}
	}
}

// awaitEnd wants what the power cut interrupted to come to its end.
func (r *powerRun) awaitEnd(m chaos.Moment) {
	r.t.Helper()
	eventually(r.t, "the end of: "+string(m), func(ctx context.Context) error {
		if err := r.rolledOut(ctx); err != nil {
			return err
		}
		for name := range r.specs {
			if !strings.HasPrefix(name, "managed") {
				continue
			}
			status, err := r.managed.sidecar(ctx, name)
			if err == nil && (status["state"] != "Running" || status["ready"] != true) {
				err = fmt.Errorf("the ManagedProxy %s says %v", name, status)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// prepareNext removes the pods of the moment, and makes the missing ones again.
func (r *powerRun) prepareNext() {
	r.t.Helper()
	eventually(r.t, "the pods as at the start", func(ctx context.Context) error {
		var all error
		r.list(ctx)
		for i := range starters {
			name := fmt.Sprintf("starter-%d", i)
			if pod, _ := r.look(name); pod != nil {
				err := r.pods().Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
				all = errors.Join(err, fmt.Errorf("pod %s is there", name))
			}
		}
		for name, spec := range r.specs {
			pod, _ := r.look(name)
			if pod == nil {
				_, err := r.pods().Create(ctx, spec.DeepCopy(), metav1.CreateOptions{})
				if err != nil && !apierrors.IsAlreadyExists(err) {
					all = errors.Join(all, err)
				}
				all = errors.Join(all, fmt.Errorf("pod %s was missing", name))
			} else if err := isReadyNow(pod); err != nil {
				all = errors.Join(all, fmt.Errorf("%s: %w", name, err))
			}
		}
		return all
	})
}

// printTable is called whether the test has failed or not.
func (r *powerRun) printTable() {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CUT\tMOMENT\tAFTER\tCONTAINERD\tKUBELET READY\tAGENT\tALL CAPTURED\tSLOWEST POD\tPODS\tPROXIED\tPASSED BY\tLEFT")
	for i, row := range r.rows {
		fmt.Fprintf(w, "%d\t%s\n", i+1, row)
	}
	_ = w.Flush()
	r.t.Logf("seconds since the begin of the boot; of the slowest pod since its sandbox and the agent were there:\n%s", text.String())
}

func (row *cutRow) String() string {
	left := "nothing"
	if row.leftovers != nil {
		left = strings.ReplaceAll(row.leftovers.Error(), "\n", "; ")
	}
	return fmt.Sprintf("%s\t%.2f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%d\t%d\t%d\t%s", row.Moment, row.After.Seconds(), row.runtime.Seconds(), row.kubelet.Seconds(),
		row.agent.Seconds(), row.captured.Seconds(), row.slowest.Seconds(), row.pods, row.proxied, row.direct, left)
}
