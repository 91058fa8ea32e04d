package e2e

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The commands of docs/troubleshooting.md, with a pod that is refused and one that is well.
//
//e2e:rounds nri
func TestMigrateTroubleshootingShowsTheCause(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	wrong := meshPod("wrong", map[string]string{keyExcludeOutbound: "http"})
	wrong.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: condition}}
	s.create(t, wrong)
	s.await(t, "wrong", hasStatus(statusFailed))
	s.awaitEvent(t, "wrong", refusedEvent(), keyExcludeOutbound)
	well := newPod("well", nil, toolsContainer(), proxyContainer("istio-proxy"))
	s.startMesh(t, well)
	rules := readDetails(t, s.await(t, "well", hasStatus(statusInitialized))).SpecHash

	g := s.newGuide(t)
	look := func(pod string) func() {
		return func() { g.env = []string{"NS=" + s.name, "POD=" + pod} }
	}
	g.before["sandbox-events"], g.before["direct"] = look("wrong"), look("well")
	g.follow(t, "troubleshooting.md")
	for step, words := range map[string][]string{
		"sandbox-events": {keyExcludeOutbound, `"http"`},
		"direct":         {"annotated"},
		"readyz":         {s.agent(t).Name + " is ready"},
		"daemonset":      {"DESIRED", agentName},
	} {
		for _, word := range words {
			if !strings.Contains(g.printed[step], word) {
				t.Errorf("step %s does not say %q, but:\n%s", step, word, g.printed[step])
			}
		}
	}
	s.await(t, "well", func(pod *corev1.Pod) error { // an edit may take ten seconds where the kubelet gives pods
		d, err := detailsOf(pod)
		if err == nil && d.SpecHash == rules {
			err = errors.New("it has the rules of before")
		}
		return err
	})
	wantInbound(t, s.await(t, "well", isRunning), families()[1], appPort, false)
}
