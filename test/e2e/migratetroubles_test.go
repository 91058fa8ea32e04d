package e2e

import (
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

	g := s.newGuide(t)
	look := func(pod string) func() {
		return func() { g.env = []string{"NS=" + s.name, "POD=" + pod, "CONTAINER=app"} }
	}
	for _, step := range []string{"report", "sandbox-events", "gates"} {
		g.before[step] = look("wrong")
	}
	for _, step := range []string{"listeners", "counters", "direct"} {
		g.before[step] = look("well")
	}
	g.follow(t, "troubleshooting.md")
	for step, words := range map[string][]string{
		"report":         {"False InvalidAnnotation: ", keyExcludeOutbound, `"http"`},
		"sandbox-events": {keyExcludeOutbound, `"http"`},
		"gates":          {condition + "\n", condition + "=False InvalidAnnotation\n", "Ready=False"},
		"listeners":      {"3A99\n", "3A9E\n"},
		"counters":       {"15001", "15006", "packets"},
		"direct":         {"annotated"},
		"taints":         {"NODE", s.node.NodeName, "enabled: true"},
		"readyz":         {s.agent(t).Name + " is ready"},
		"previous":       {agentName},
		"daemonset":      {"DESIRED", agentName},
	} {
		for _, word := range words {
			if !strings.Contains(g.printed[step], word) {
				t.Errorf("step %s does not say %q, but:\n%s", step, word, g.printed[step])
			}
		}
	}
	s.await(t, "well", hasStatus(statusInitialized))
	wantInbound(t, s.await(t, "well", isRunning), families()[1], appPort, false)
}
