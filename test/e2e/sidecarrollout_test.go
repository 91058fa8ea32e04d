package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	// rolledPods have their proxies upgraded by one roll-out, unless E2E_ROLLED says otherwise.
	rolledPods = 6
	// rolledAtOnce is the profile's maxParallel.
	rolledAtOnce = 5
	// rolledEvery is the time between two new connections in each direction, of all pods together.
	rolledEvery = 10 * time.Millisecond
	// dialingPods make connections themselves; all take some. Each is a process more.
	dialingPods = 10
	// idleWindow is how long the agent is measured while nothing happens, if the figures are kept.
	idleWindow = 30 * time.Second
)

// One change of a profile replaces the proxies of a full node, a few at a time, under load in both directions, and no connection fails. With
// BENCH_JSON the figures are kept.
//
// Not parallel: it measures the agent.
//
//e2e:rounds nri
func TestSidecarRolloutUnderLoad(t *testing.T) {
	m := newManaged(t, func(spec map[string]any) { updateOf(spec)["maxParallel"] = int64(rolledAtOnce) })
	f := families()[0]
	n := amount(t, "E2E_ROLLED", rolledPods)
	dialing := min(n, dialingPods)
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		name := fmt.Sprintf("rolled-%d", i)
		pods[i] = plainPod(name)
		if i < dialing {
			pods[i] = loadedPod(name, rolledEvery*time.Duration(dialing), f.at(1, worldPort).String(), "")
			pods[i].Spec.Containers = pods[i].Spec.Containers[:2] // it holds no connection
		}
		m.create(t, pods[i])
	}
	m.awaitAll(t, n, isReadyNow)
	rows := m.idleAgent(t, n)
	loads := make([]*inboundLoad, n)
	for i := range pods {
		pods[i] = m.await(t, pods[i].Name, isReadyNow)
		loads[i] = loadInboundEvery(t, rolledEvery*time.Duration(n), at(pods[i], f, appPort), f.passthrough)
	}
	eventually(t, "the pods' connections", func(ctx context.Context) error {
		return m.eachDials(ctx, pods[:dialing], func(s summary) error { return atLeast(s.OK, 1) })
	})
	before, err := m.sidecar(t.Context(), pods[0].Name)
	must(t, err)
	used, began := m.metrics(t), time.Now()
	m.newVersion(t, "rolled out")
	m.awaitRolledOut(t, n, isUpgraded(before))
	took, now := time.Since(began), m.metrics(t)
	eventually(t, "the end of the old proxies", func(ctx context.Context) error {
		all, err := m.proxies(ctx)
		if err == nil && len(all) != n {
			err = fmt.Errorf("there are %d, want %d", len(all), n)
		}
		return err
	})
	asked, failed := m.endLoads(t, pods[:dialing], loads)
	t.Logf("%d proxies, %d at once, in %s; %d connections, %d failed; the agent used %.2f s of CPU", n, rolledAtOnce, took.Round(time.Millisecond),
		asked, failed, now.cpu()-used.cpu())
	if failed > 0 {
		t.Errorf("%d of %d connections failed", failed, asked)
	}
	of := fmt.Sprintf(" of the roll-out of %d proxies, %d at once, under load in both directions", n, rolledAtOnce)
	keepRows(t, append(rows,
		newRow("duration"+of, "s", took.Seconds(), 0, "reported"), newRow("failed connections"+of+", against all", "count", float64(failed), float64(asked), "0"),
		newRow("CPU of the agent"+of+", for a proxy", "ms", 1000*(now.cpu()-used.cpu())/float64(n), 0, "reported")))
}

// idleAgent measures what the agent takes while nothing happens, if the figures are kept.
func (m managed) idleAgent(t *testing.T, proxies int) []row {
	t.Helper()
	if os.Getenv("BENCH_JSON") == "" {
		return nil
	}
	before := m.metrics(t)
	<-time.After(idleWindow)
	after := m.metrics(t)
	requests := after.sum("rest_client_requests_total") - before.sum("rest_client_requests_total")
	of := fmt.Sprintf(" of the agent with %d idle HAProxies", proxies)
	return []row{
		newRow("CPU"+of, "% of a core", 100*(after.cpu()-before.cpu())/idleWindow.Seconds(), 0, "reported"),
		newRow("RSS"+of, "MiB", after.rss(), 0, "reported"),
		newRow("requests to the API server"+of, "a minute", requests*float64(time.Minute)/float64(idleWindow), 0, "reported"),
	}
}

// cpu is the agent's CPU time so far, in seconds.
func (m metrics) cpu() float64 { return m.sum("process_cpu_seconds_total") }

// awaitRolledOut waits until so many ManagedProxies are as check wants them.
func (m managed) awaitRolledOut(t *testing.T, n int, check func(status map[string]any) error) {
	t.Helper()
	within(t, patience+time.Duration(n)*time.Second, "the roll-out", func(ctx context.Context) error {
		list, err := m.objects.Resource(sidecarKind("managedproxies")).Namespace(m.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != n {
			return fmt.Errorf("there are %d ManagedProxies, want %d", len(list.Items), n)
		}
		for i := range list.Items {
			status, _, _ := unstructured.NestedMap(list.Items[i].Object, "status")
			if err := check(status); err != nil {
				return fmt.Errorf("%s: %w", list.Items[i].GetName(), err)
			}
		}
		return nil
	})
}

// endLoads ends the loads, and counts their connections.
func (m managed) endLoads(t *testing.T, dialing []*corev1.Pod, loads []*inboundLoad) (asked, failed int) {
	t.Helper()
	for i, l := range loads {
		l.stop(t)
		asked, failed = asked+l.asked, failed+l.lost
		if l.asked == 0 || l.bypassed > l.lost || l.failed != nil {
			t.Errorf("inbound of pod %d: of %d connections %d bypassed the proxy or failed, error %v", i, l.asked, l.bypassed, l.failed)
		}
	}
	must(t, m.eachDials(t.Context(), dialing, func(s summary) error {
		asked, failed = asked+s.OK+s.Failed, failed+s.Failed
		if s.Failed > 0 {
			t.Errorf("of %d connections %d failed: %v", s.OK+s.Failed, s.Failed, s.Errors)
		}
		return nil
	}))
	return asked, failed
}

// keepRows adds rows to the file that BENCH_JSON names, if it does.
func keepRows(t *testing.T, rows []row) {
	t.Helper()
	if file := os.Getenv("BENCH_JSON"); file != "" {
		_, err := addRows(file, rows)
		must(t, err)
	}
}
