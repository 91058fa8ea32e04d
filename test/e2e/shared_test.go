package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
)

const (
	keySharedProxy = "pod-network-controller.istio.io/shared-proxy"
	sharedRoot     = "run/istio-pod-network-controller/shared"
)

// Profiles whose proxies testdata/shared-values.yaml has the chart run. A test has its own, because it reloads and breaks it.
const (
	sharedLoad    = "e2e-shared-load"
	sharedTrouble = "e2e-shared-trouble"
	sharedMoves   = "e2e-shared-moves"
	sharedSwap    = "e2e-shared-swap"
)

// newShared makes a namespace whose pods share the node's proxy of a profile: the sample's, as changed.
func newShared(t testing.TB, profile string, change ...func(spec map[string]any)) managed {
	t.Helper()
	s := newSpace(t, nil)
	objects, err := dynamic.NewForConfig(s.rest)
	must(t, err)
	m := managed{s, profile, objects}
	m.createShared(t, change...)
	s.annotateSelf(t, map[string]any{keySidecar: profile})
	return m
}

func (m managed) createShared(t testing.TB, change ...func(spec map[string]any)) {
	t.Helper()
	m.createProfileFrom(t, "proxy-profile-shared.yaml", change...)
	t.Cleanup(func() { m.deleteProfile(t) })
}

// changeTemplate replaces words of the template of the profile's file, which have to be there.
func changeTemplate(t testing.TB, spec map[string]any, old, replacement string) {
	t.Helper()
	file := spec["files"].([]any)[0].(map[string]any)
	template := file["template"].(string)
	if !strings.Contains(template, old) {
		t.Fatalf("the sample's template has no %q", old)
	}
	file["template"] = strings.ReplaceAll(template, old, replacement)
}

// withOneThread has HAProxy write each line of its log, so that they can be counted.
func withOneThread(t testing.TB) func(map[string]any) {
	t.Helper()
	return func(spec map[string]any) { changeTemplate(t, spec, "  log stdout", "  nbthread 1\n  log stdout") }
}

// sharedPod is the pod of the profile's proxy, once it runs.
func (m managed) sharedPod(t testing.TB) (pod *corev1.Pod) {
	t.Helper()
	eventually(t, "the proxy of "+m.profile, func(ctx context.Context) error {
		list, err := m.api.CoreV1().Pods(agentName).List(ctx, metav1.ListOptions{LabelSelector: keySharedProxy + "=" + m.profile})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 {
			return fmt.Errorf("there are %d", len(list.Items))
		}
		pod = &list.Items[0]
		return isRunning(pod)
	})
	return pod
}

// sharedLog is what the node's shared proxy has printed.
func (m managed) sharedLog(t testing.TB) string {
	t.Helper()
	return m.logs(t, fmt.Sprintf("%s_%s-shared-%s-*", agentName, agentName, m.profile), "proxy")
}

// version is the directory of the configuration that the proxy is to have.
func (m managed) version(t testing.TB) string {
	t.Helper()
	name, err := os.Readlink(filepath.Join(m.node.NodeRoot, sharedRoot, m.profile, "files/current"))
	must(t, err)
	return name
}

// passed counts the connections of a pod that the shared proxy has made in one direction to a destination.
func (m managed) passed(t testing.TB, pod, direction string, to netip.AddrPort) (n int) {
	t.Helper()
	who, where := fmt.Sprintf("%s pod=%s/%s peer=", direction, m.name, pod), fmt.Sprintf("original-dst=%s state=--", to)
	for line := range strings.Lines(m.sharedLog(t)) {
		if strings.Contains(line, who) && strings.Contains(line, where) {
			n++
		}
	}
	return n
}

// wantShared wants connections of both directions to pass the shared proxy, which knows whose they are.
func (m managed) wantShared(t testing.TB, pod *corev1.Pod) {
	t.Helper()
	m.awaitListening(t, pod)
	f := families()[0]
	in, out := at(pod, f, appPort), f.at(7, worldPort)
	before := [2]int{m.passed(t, pod.Name, "inbound", in), m.passed(t, pod.Name, "outbound", out)}
	var a answer
	must(t, request(t.Context(), in, "/", &a))
	if a.Banner != pod.Name || a.peer() != f.passthrough {
		t.Errorf("%s answered and saw %s, want the proxy", a.Banner, a.Peer)
	}
	if a = m.askFrom(t, pod, out); a.Banner != "world" || a.peer() != in.Addr() {
		t.Errorf("%q answered and saw %s, want the world and %s", a.Banner, a.Peer, in.Addr())
	}
	eventually(t, "the proxy's lines about "+pod.Name, func(context.Context) error {
		in, out := m.passed(t, pod.Name, "inbound", in)-before[0], m.passed(t, pod.Name, "outbound", out)-before[1]
		if in < 1 || out < 1 {
			return fmt.Errorf("%d inbound, %d outbound", in, out)
		}
		return nil
	})
}

// busyPod is an application beside a container that makes new connections to the world from the moment on in which the first is answered.
func busyPod(name string, world netip.AddrPort) *corev1.Pod {
	pod := plainPod(name)
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever // the load ends once
	target := "http://" + world.String() + "/"
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
		Name: "dials", Image: "localhost/tools:1",
		Command: []string{"sh", "-c", "until wget -q -O /dev/null " + target + "; do usleep 50000; done; exec testapp dial -report 200ms -every 5ms " + target},
	})
	return pod
}

// busy is the load of a busy pod, in both directions, and a connection that stays open.
type busy struct {
	managed
	pod   *corev1.Pod
	world netip.AddrPort
	in    *inboundLoad
	held  *echo
}

// startBusy makes a busy pod and waits until connections pass in both directions.
func (m managed) startBusy(t *testing.T, name string) *busy {
	t.Helper()
	f := families()[0]
	b := &busy{managed: m, world: f.at(9, worldPort)}
	m.create(t, busyPod(name, b.world))
	b.pod = m.await(t, name, isReadyNow)
	b.in = loadInbound(t, at(b.pod, f, appPort), f.passthrough)
	b.held = dialEcho(t, at(b.pod, f, appTCPPort))
	if !b.held.proxied {
		t.Error("the connection that stays open does not pass the proxy")
	}
	eventually(t, "the load of "+name, func(ctx context.Context) error {
		return m.eachDials(ctx, []*corev1.Pod{b.pod}, func(s summary) error {
			if s.OK == 0 {
				return errors.New("no connection was answered")
			}
			return nil
		})
	})
	return b
}

// wantNoneFailed wants none of the connections that the application has made to have failed so far.
func (b *busy) wantNoneFailed(t *testing.T, when string) {
	t.Helper()
	must(t, b.eachDials(t.Context(), []*corev1.Pod{b.pod}, func(s summary) error {
		if s.Failed > 0 {
			t.Errorf("%s: %d connections were answered, %d failed: %v", when, s.OK, s.Failed, s.Errors)
		}
		return nil
	}))
}

// stop ends the load, and returns what became of the connections that the application has made. Its first one is not among them.
func (b *busy) stop(t *testing.T) (sent summary) {
	t.Helper()
	b.held.say(t, "at the end")
	b.in.stop(t)
	must(t, syscall.Kill(b.containerPID(t, b.pod, "dials"), syscall.SIGTERM))
	b.await(t, b.pod.Name, func(pod *corev1.Pod) error {
		for _, c := range pod.Status.ContainerStatuses {
			if c.Name == "dials" && c.State.Terminated == nil {
				return errors.New("the load has not ended")
			}
		}
		return nil
	})
	must(t, b.eachDials(t.Context(), []*corev1.Pod{b.pod}, func(s summary) error {
		sent = s
		return nil
	}))
	return sent
}

// awaitEnough waits until there are as many connections as wantKept wants.
func (b *busy) awaitEnough(t *testing.T) {
	t.Helper()
	eventually(t, "connections of the application", func(ctx context.Context) error {
		return b.eachDials(ctx, []*corev1.Pod{b.pod}, func(s summary) error {
			if s.OK < enough {
				return fmt.Errorf("%d so far", s.OK)
			}
			return nil
		})
	})
	eventually(t, "connections of clients", func(context.Context) error {
		select {
		case <-b.in.many:
			return nil
		default:
			return errors.New("not enough so far")
		}
	})
}

// wantKept wants no connection to have failed, or to have gone past the proxy.
func (b *busy) wantKept(t *testing.T, sent summary) {
	t.Helper()
	if b.in.failed != nil || b.in.bypassed > 0 || b.in.asked < 100 {
		t.Errorf("inbound: of %d connections %d bypassed the proxy; failed: %v", b.in.asked, b.in.bypassed, b.in.failed)
	}
	if sent.Failed > 0 || sent.OK < 100 {
		t.Errorf("outbound: %d connections were answered, %d failed: %v", sent.OK, sent.Failed, sent.Errors)
	}
}
