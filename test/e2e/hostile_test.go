package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// harm is what a pod with NET_ADMIN does in its own network namespace, over and over, as a shell reads it; it says "did" where
// that succeeded. With users it is also tried from a pod with users of its own: the kernel checks that pod's rights elsewhere, in the same
// way for the other harms.
type harm struct {
	name, script string
	users        bool
}

// harms are those that the backend of this run would meet.
func harms() []harm {
	if backend() == iptables {
		return []harm{
			{name: "comments of several lines", users: true, script: `
				iptables -t nat -A OUTPUT -m comment --comment "$(printf 'x\n:\ny')" && did
				iptables -t nat -A OUTPUT -m comment --comment "$(printf 'x\n-A OUTPUT -j PODNET_EVIL -m bogus\ny')" && did
				usleep 200000`},
			{name: "100,000 rules", users: true, script: `
				i=0; while [ $i -lt 200 ] && [ ! -e /tmp/stop ]; do i=$((i+1))
				{ echo '*nat'; echo ':PODNET_E2E - [0:0]'; seq 1 500 | sed 's/.*/-A PODNET_E2E -p tcp/'; echo COMMIT; } | iptables-restore --noflush && did; done`},
		}
	}
	return []harm{
		{name: "comments of several lines", users: true, script: `
			nft add table inet pod-network-controller; nft add chain inet pod-network-controller e2e
			nft add rule inet pod-network-controller e2e counter comment "\"$(printf 'x\n:\ny')\"" && did
			nft add set inet pod-network-controller e2e "{ type ipv4_addr; comment \"$(printf 'x\n- y accept\ny')\"; }" && did
			usleep 50000`},
		{name: "100,000 rules", users: true, script: `
			i=0; while [ $i -lt 100 ] && [ ! -e /tmp/stop ]; do i=$((i+1))
			{ echo add table inet pod-network-controller; echo add chain inet pod-network-controller e2e
			seq 1 1000 | sed 's/.*/add rule inet pod-network-controller e2e counter/'; } | nft -f - && did; done`},
	}
}

// hostilePod does harm from its start until there is a file /tmp/stop in its container.
func hostilePod(name string, userNamespace bool, h harm) *corev1.Pod {
	evil := appContainer()
	evil.Name, evil.Image = "evil", "localhost/tools:1"
	evil.Args = nil
	evil.Command = []string{"/bin/sh", "-c", "exec 2>/tmp/errors; did() { echo >>/tmp/did; }; while [ ! -e /tmp/stop ]; do " + h.script + "\ndone; touch /tmp/stopped; exec sleep 100000"}
	evil.SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}}
	pod := newPod(name, nil, appContainer(), proxyContainer("istio-proxy"), evil)
	if userNamespace {
		no := false
		pod.Spec.HostUsers = &no
	}
	return pod
}

// needsUserNamespaces skips a test of pods that have one on a node whose container runtime has none.
func (c *cluster) needsUserNamespaces(t *testing.T) {
	t.Helper()
	for _, h := range c.nodeStatus(t).RuntimeHandlers {
		if h.Name == "" && h.Features != nil && h.Features.UserNamespaces != nil && *h.Features.UserNamespaces {
			return
		}
	}
	t.Skip("this node's container runtime has no user namespaces: containerd has them from 2.0 on")
}

// What a pod does to its own rules is its own affair: the agent lives, bounded, other pods start in time and keep their rules,
// and the pod's own are mended when it stops.
//
// Not parallel: it looks at the agent's memory and restarts.
//
//e2e:rounds iptables nri
func TestHostilePodsHurtNobodyElse(t *testing.T) {
	for _, h := range harms() {
		for _, users := range []bool{false, true} {
			if users && !h.users {
				continue
			}
			t.Run(fmt.Sprintf("%s/user namespace %t", h.name, users), func(t *testing.T) {
				t.Parallel() // two hostile pods are no kinder than one
				testHostilePod(t, h, users)
			})
		}
	}
}

func testHostilePod(t *testing.T, h harm, users bool) {
	t.Helper()
	s := newSpace(t, asked())
	if users {
		s.needsUserNamespaces(t)
	}
	agent := s.agent(t)
	bystander := s.startMesh(t, meshPod("bystander", nil))
	hostile := s.create(t, hostilePod("hostile", users, h))
	s.await(t, hostile.Name, isRunning)

	for i := range 3 {
		// An edit has the agent look into the namespace now, not with the next check.
		s.annotate(t, hostile.Name, map[string]any{keyExcludeOutbound: fmt.Sprint(3306 + i)})
		name, began := fmt.Sprintf("victim-%d", i), time.Now()
		victim := s.startMesh(t, meshPod(name, nil))
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("pod %s was ready after %s", name, took)
		}
		wantInbound(t, victim, families()[i%2], appPort, true)
	}
	for _, f := range families() {
		wantInbound(t, bystander, f, appPort, true)
		s.wantOutbound(t, bystander, f.at(1, worldPort), true)
	}
	s.wantUnhurt(t, agent)

	s.stopHarm(t, hostile)
	s.annotate(t, hostile.Name, map[string]any{keyExcludeOutbound: nil})
	if users && backend() == iptables { // which cannot serve such pods, and says so
		s.await(t, hostile.Name, hasStatus(statusFailed))
		s.wantUnhurt(t, agent)
		return
	}
	good, _ := s.rules(t, bystander)
	hostile = s.await(t, hostile.Name, func(pod *corev1.Pod) error {
		// A pod whose rules were changed again and again stays contended for a minute.
		if err := hasStatus(statusInitialized)(pod); err != nil && conditionOf(pod).Reason != "Contended" {
			return err
		}
		if rules, ok := s.rules(t, pod); !ok || rules.text() != good.text() {
			return fmt.Errorf("its rules are not mended:\n%s", rules.text())
		}
		return nil
	})
	for _, f := range families() {
		wantInbound(t, hostile, f, appPort, true)
	}
	s.wantUnhurt(t, agent)
}

// stopHarm returns when the pod does no harm any more, and wants it to have done some.
func (s *space) stopHarm(t *testing.T, hostile *corev1.Pod) {
	t.Helper()
	inside := func(ctx context.Context, argv ...string) (string, error) {
		return s.run(ctx, command{namespace: s.name, pod: hostile.Name, container: "evil", argv: argv})
	}
	_, err := inside(t.Context(), "/bin/touch", "/tmp/stop")
	must(t, err)
	eventually(t, "the end of the harm", func(ctx context.Context) error {
		_, err := inside(ctx, "/bin/ls", "/tmp/stopped")
		return err
	})
	did, err := inside(t.Context(), "/bin/sh", "-c", "wc -l </tmp/did")
	n, _ := strconv.Atoi(strings.TrimSpace(did))
	if errs, _ := inside(t.Context(), "/bin/sh", "-c", "sort /tmp/errors | uniq -c | head -n 20"); err != nil || n == 0 {
		t.Errorf("the pod did harm %d times (%v), which proves little:\n%s", n, err, errs)
	}
	t.Logf("the pod did harm %d times", n)
}

// wantUnhurt wants the agent to be the process that it was, within its limit of memory.
func (c *cluster) wantUnhurt(t *testing.T, before *corev1.Pod) {
	t.Helper()
	now := c.agent(t)
	if now.UID != before.UID || now.Status.ContainerStatuses[0].RestartCount != before.Status.ContainerStatuses[0].RestartCount {
		t.Errorf("the agent has restarted: %+v", now.Status.ContainerStatuses[0].LastTerminationState)
	}
	limit := now.Spec.Containers[0].Resources.Limits.Memory().Value()
	rss := c.metrics(t).sum("process_resident_memory_bytes")
	t.Logf("the agent's RSS is %.1f MiB of %.1f", rss/(1<<20), float64(limit)/(1<<20))
	if limit > 0 && rss > 0.75*float64(limit) {
		t.Errorf("the agent's RSS is %.0f bytes, its limit is %d", rss, limit)
	}
}

// The largest annotations that the API server takes, and lists that nobody means: the last are refused in words.
//
//e2e:rounds nftables iptables
func TestUnusualPodsAreProgrammed(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	ports := make([]string, 10000)
	for i := range ports {
		ports[i] = fmt.Sprint(20001 + 2*i)
	}
	s.create(t, meshPod("many", map[string]string{keyExcludeOutbound: strings.Join(ports, ",")}))
	large := s.startMesh(t, meshPod("large", map[string]string{"example.com/large": strings.Repeat("<", 250<<10)}))
	for _, f := range families() {
		wantInbound(t, large, f, appPort, true)
		s.wantOutbound(t, large, f.at(1, worldPort), true)
	}
	refused := s.await(t, "many", hasStatus(statusFailed))
	if said := readDetails(t, refused).Message; !strings.Contains(said, keyExcludeOutbound) || len(said) > 1000 {
		t.Errorf("the pod is told %.2000q", said)
	}
}
