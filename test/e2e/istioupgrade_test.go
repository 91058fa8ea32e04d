package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// heldFor is how long a held connection stays at least when everything has been said on it.
const heldFor = 5 * time.Second

// istiodRestarts is how often the control plane ends, unless E2E_ISTIO_RESTARTS says otherwise.
const istiodRestarts = 10

// Every proxy is replaced, again and again, while applications make new connections by mTLS, and hold others: none is lost, and none is cut before
// its old proxies have drained. The control plane is restarted meanwhile, and is away when an upgrade begins: the new proxies wait for it, and the
// old ones serve.
func (o outside) upgrades(t *testing.T) {
	m := o.open(t)
	t.Cleanup(func() { o.istiod(t, "scale", "--replicas=1"); o.istiod(t, "rollout", "status", "--timeout=1m") })
	for i, meanwhile := range []func(){
		func() {},
		func() { o.istiod(t, "rollout", "restart"); o.istiod(t, "rollout", "status", "--timeout=1m") },
		func() {
			m.awaitSidecar(t, m.pods[0].Name, hasState("Upgrading"))
			m.awaitMore(t, m.buying) // the old proxies serve
			o.istiod(t, "scale", "--replicas=1")
			o.istiod(t, "rollout", "status", "--timeout=1m")
		},
	} {
		if i == 2 {
			o.istiod(t, "scale", "--replicas=0")
			o.mustKubectl(t, "wait", "pods", "-n", "istio-system", "--selector", "app=istiod", "--for=delete", "--timeout=1m")
		}
		held := m.hold(t)
		m.upgrade(t, fmt.Sprint(i), version(i), meanwhile)
		for _, h := range held {
			h.say(t, fmt.Sprint("after upgrade ", i))
			must(t, h.told.Close()) // the next proxy waits for the end of the first
		}
	}
	held := m.hold(t)
	began := time.Now()
	for i := range amount(t, "E2E_ISTIO_RESTARTS", istiodRestarts) {
		o.restartIstiod(t)
		for _, h := range held {
			h.say(t, fmt.Sprint("after restart ", i))
		}
	}
	t.Logf("%d restarts of istiod in %s", amount(t, "E2E_ISTIO_RESTARTS", istiodRestarts), time.Since(began).Round(time.Millisecond))
	m.awaitMore(t, m.buying)
	began = time.Now()
	m.upgrade(t, "with a drain to its end", version(3), func() {})
	for _, h := range held {
		h.say(t, "while the old proxies drain")
	}
	limit := time.Since(began).Truncate(time.Second) + heldFor
	m.patchProfile(t, map[string]any{"update": map[string]any{"drainSeconds": int64(limit / time.Second)}}) // also of proxies that drain
	for _, h := range held {
		lasted := h.awaitEnd(t).Sub(began)
		t.Logf("a held connection was cut %s after the upgrade's begin, drainSeconds are %s", lasted.Round(time.Millisecond), limit)
		if lasted < limit {
			t.Errorf("a held connection was cut after %s", lasted)
		}
	}
	m.wantNothingLost(t)
}

// version is a change of a profile by which proxies are upgraded, and nothing else.
func version(i int) map[string]any {
	return map[string]any{"env": []any{map[string]any{"name": "VERSION", "value": fmt.Sprint(i)}}}
}

// restartIstiod ends the control plane, and waits for a new one: for a while there is none.
func (o outside) restartIstiod(t *testing.T) {
	t.Helper()
	o.mustKubectl(t, "delete", "pods", "-n", "istio-system", "--selector", "app=istiod,istio=pilot", "--now")
	o.istiod(t, "rollout", "status", "--timeout=1m")
}

// allAtOnce has a node's proxies upgraded at the same time.
func allAtOnce(spec map[string]any) { updateOf(spec)["maxParallel"] = int64(10) }

// awaitMore waits until each of the pods has been answered more often than before.
func (m managed) awaitMore(t *testing.T, pods []*corev1.Pod) {
	t.Helper()
	const more = 20
	least := map[int]int{}
	eventually(t, "the pods' connections", func(ctx context.Context) error {
		i := -1
		return m.eachDials(ctx, pods, func(s summary) error {
			i++
			if _, known := least[i]; !known {
				least[i] = s.OK + more
			}
			return atLeast(s.OK, least[i])
		})
	})
}

// istiod runs kubectl for the control plane's Deployment.
func (o outside) istiod(t *testing.T, args ...string) {
	t.Helper()
	verb, flags := args[:1], args[1:]
	if args[0] == "rollout" {
		verb, flags = args[:2], args[2:]
	}
	o.mustKubectl(t, append(append(append([]string{}, verb...), "deployment/istiod", "-n", "istio-system"), flags...)...)
}

func hasState(want string) func(map[string]any) error {
	return func(status map[string]any) error {
		if status["state"] != want {
			return fmt.Errorf("it says %v, want %s", status, want)
		}
		return nil
	}
}

// A pod that is deleted in the middle of an upgrade leaves nothing, and a Job ends.
func (o outside) ends(t *testing.T) {
	m := o.mesh(t, allAtOnce)
	pods := []*corev1.Pod{m.create(t, m.member(t, "store", "v1")), m.create(t, m.member(t, "store", "v2"))}
	m.wantIdentities(t, pods)

	job := m.member(t, "job", "v1")
	job.Spec.RestartPolicy = corev1.RestartPolicyNever
	job.Spec.Containers[0].Image, job.Spec.Containers[0].Args = "localhost/tools:1", nil
	job.Spec.Containers[0].Command = []string{"sh", "-c", "until testapp get " + meshURL("store") + "; do usleep 200000; done"}
	job = m.create(t, job)
	m.await(t, job.Name, func(pod *corev1.Pod) error {
		if pod.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return nil
	})
	m.awaitSidecar(t, job.Name, func(status map[string]any) error {
		return errors.Join(hasState("Ended")(status), equal(status["restarts"], 0))
	})
	must(t, m.pods().Delete(t.Context(), job.Name, metav1.DeleteOptions{}))

	m.newVersion(t, "in the middle")
	m.awaitSidecar(t, pods[0].Name, hasState("Upgrading"))
	uids := []types.UID{job.UID}
	for _, pod := range pods {
		uids = append(uids, pod.UID)
		must(t, m.pods().Delete(t.Context(), pod.Name, metav1.DeleteOptions{}))
	}
	m.wantNothingLeft(t, uids)
}
