package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	redirectMode = "redirect"
	tproxyMode   = "tproxy"
	native       = "native"
	byIptables   = "iptables"

	// migrationEvery is the time between two connections of a load.
	migrationEvery = 20 * time.Millisecond
)

// migrant is a Deployment that is redirected throughout a migration: first by Istio's rules in one of their flavours. The name says all.
//
// A canary is one whose proxy takes no redirected connection, and whose application dials the world from its first instruction on: what
// reaches the world has bypassed the proxy.
type migrant struct {
	mode, flavour string
	canary        bool
}

func (m migrant) name() string {
	name := m.mode + "-" + m.flavour
	if m.canary {
		name += "-canary"
	}
	return name
}

// migrantOf reads the label of a migrant's pod.
func migrantOf(pod *corev1.Pod) migrant {
	words := append(strings.Split(pod.Labels["app"], "-"), "", "")
	return migrant{words[0], words[1], words[2] == "canary"}
}

// proxyArgs are the arguments of its test proxy.
func (m migrant) proxyArgs() (args []string) {
	if m.canary {
		args = append(args, "-outbound=25001", "-inbound=25006")
	}
	if m.mode == tproxyMode {
		args = append(args, "-transparent")
	}
	return args
}

func (m migrant) labels() map[string]string { return map[string]string{"app": m.name()} }

// deployment has no proxy: somebody injects it. Its pods stay until Services have stopped to send to them.
func (m migrant) deployment(catcher int) *appsv1.Deployment {
	app := bare(toolsContainer())
	// A busy machine takes its time to start a program in a container.
	app.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 10, ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"testapp", "get", "http://127.0.0.1:8080/"}}, // which passes no proxy
	}}
	app.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 4}}}
	if m.canary {
		app = corev1.Container{Name: "app", Image: "localhost/testapp:1", Args: []string{
			"dial", "-every=20ms", "-report=0s", families()[0].at(7, uint16(catcher)).String(),
		}}
	}
	pod := newPod("", nil, app)
	pod.Labels = m.labels()
	// Istio's agent starts the test proxy in Envoy's place, with what is in the environment.
	pod.Annotations = map[string]string{"proxy.istio.io/config": `{"proxyMetadata": {"TESTPROXY": "` + strings.Join(m.proxyArgs(), " ") + `"}}`}
	if m.mode == tproxyMode {
		pod.Annotations[keyMode] = "TPROXY"
	}
	*pod.Spec.TerminationGracePeriodSeconds = 9
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: m.name()},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: m.labels()},
			Template: corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec},
		},
	}
}

func (s *space) deploy(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	_, err := s.api.AppsV1().Deployments(s.name).Create(t.Context(), d, metav1.CreateOptions{})
	must(t, err)
}

// podOf waits until a migrant has one pod that stays, which is ready. It makes no connection to it.
func (s *space) podOf(t *testing.T, m migrant) *corev1.Pod {
	t.Helper()
	return s.onlyPod(t, m.name())
}

// onlyPod is podOf for the pods with a label app.
func (s *space) onlyPod(t *testing.T, app string) (pod *corev1.Pod) {
	t.Helper()
	eventually(t, "the only pod of "+app, func(ctx context.Context) error {
		list, err := s.pods().List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err
		}
		list.Items = slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
		if len(list.Items) != 1 {
			return fmt.Errorf("there are %d", len(list.Items))
		}
		pod = &list.Items[0]
		return errors.Join(isRunning(pod), isReadyNow(pod))
	})
	return pod
}

// seen is who the application of a migrant sees as the client.
func (m migrant) seen(f family) netip.Addr {
	if m.mode == tproxyMode {
		return f.client
	}
	return f.passthrough
}

// watched is a pod under load in both directions. Nobody else may connect to it.
type watched struct {
	migrant
	pod    *corev1.Pod
	before map[string]count
	in     *inboundLoad
	out    *outboundLoad
}

func (s *space) watchPod(t *testing.T, m migrant) *watched {
	t.Helper()
	f, pod := families()[0], s.awaitAnswer(t, s.podOf(t, m).Name)
	w := &watched{migrant: m, pod: pod, before: counts(t, pod)}
	w.out = s.loadOutboundEvery(t, migrationEvery, pod, f.at(1, worldPort))
	eventually(t, "the load in "+pod.Name, func(ctx context.Context) error {
		var now map[string]count
		err := ask(ctx, pod, "/counts", &now)
		if err == nil && now[outbound].OK < w.before[outbound].OK+5 {
			err = fmt.Errorf("the proxy has taken %+v, before %+v", now, w.before)
		}
		return err
	})
	w.in = loadInboundEvery(t, migrationEvery, at(pod, f, appPort), m.seen(f))
	return w
}

// wantKept ends the load, and wants no connection to have failed, nor to have bypassed the proxy.
func (w *watched) wantKept(t *testing.T) {
	t.Helper()
	w.in.stop(t)
	sent := w.out.stop(t)
	if w.in.failed != nil || w.in.bypassed > 0 || sent.Failed > 0 || w.in.asked < 5 || sent.OK < 5 {
		t.Errorf("%s: of %d inbound connections %d bypassed the proxy, and the last that failed: %v; of the outbound ones %d were answered, %d failed: %v",
			w.name(), w.in.asked, w.in.bypassed, w.in.failed, sent.OK, sent.Failed, sent.Errors)
	}
	after := counts(t, w.pod)
	for direction, want := range map[string]int{inbound: w.in.asked, outbound: sent.OK} {
		if got := after[direction].OK - w.before[direction].OK; got != want || after[direction].Failed != w.before[direction].Failed {
			t.Errorf("%s: the proxy took %d %s connections of %d, and failed %d", w.name(), got, direction, want, after[direction].Failed-w.before[direction].Failed)
		}
	}
	t.Logf("%s: %d inbound and %d outbound connections", w.name(), w.in.asked, sent.OK)
}

// serviceLoad is a load on a Service, from whose pods nothing may be lost while they are replaced.
type serviceLoad struct {
	migrant
	*inboundLoad
}

func (s *space) loadService(t *testing.T, m migrant) serviceLoad {
	t.Helper()
	to := s.serveOutside(t, m)
	return serviceLoad{m, loadInboundEvery(t, migrationEvery, to, m.seen(families()[0]))}
}

// serveOutside makes a Service that this program reaches, by a port of the node, and waits until it answers.
func (s *space) serveOutside(t *testing.T, m migrant) (to netip.AddrPort) {
	t.Helper()
	made, err := s.api.CoreV1().Services(s.name).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: m.name()},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Selector: m.labels(), Ports: []corev1.ServicePort{{Port: int32(appPort)}}},
	}, metav1.CreateOptions{})
	must(t, err)
	to = netip.AddrPortFrom(netip.MustParseAddr(s.node.ip()), uint16(made.Spec.Ports[0].NodePort))
	eventually(t, "the Service "+m.name(), func(ctx context.Context) error {
		var a answer
		return request(ctx, to, "/", &a)
	})
	return to
}

// wantKept ends the load. Beyond a Service a client may have another address, so who is seen counts only where it is the proxy.
func (l serviceLoad) wantKept(t *testing.T) {
	t.Helper()
	l.stop(t)
	if l.failed != nil || l.mode == redirectMode && l.bypassed > 0 || l.asked < 20 {
		t.Errorf("%s: of %d connections to the Service %d bypassed the proxy or failed, %d failed, the last by: %v", l.name(), l.asked, l.bypassed, l.lost, l.failed)
	}
	t.Logf("%s: %d connections to the Service while its pods were replaced", l.name(), l.asked)
}

// wantCaptured wants both directions and families of a migrant's pod to pass the proxy.
func (s *space) wantCaptured(t *testing.T, m migrant) {
	t.Helper()
	pod := s.awaitAnswer(t, s.podOf(t, m).Name)
	for _, f := range families() {
		if m.mode == redirectMode {
			wantInbound(t, pod, f, appPort, true)
		} else {
			s.wantTransparentAt(t, pod, f, appPort)
		}
		s.wantSent(t, pod, f.at(2, worldPort))
	}
}

// wantSent is wantOutbound for an application in an image with a shell.
func (s *space) wantSent(t *testing.T, pod *corev1.Pod, to netip.AddrPort) {
	t.Helper()
	before := took(t, pod, outbound, to)
	_, err := s.run(t.Context(), command{namespace: s.name, pod: pod.Name, container: "app", argv: []string{"testapp", "get", "http://" + to.String() + "/"}})
	must(t, err)
	if got := took(t, pod, outbound, to) - before; got != 1 {
		t.Errorf("%s to %s: the proxy took %d connections with that original destination, want 1", pod.Name, to, got)
	}
}

// wantTransparentAt wants an inbound connection to pass the proxy, and the application to see the client.
func (s *space) wantTransparentAt(t *testing.T, pod *corev1.Pod, f family, port uint16) {
	t.Helper()
	before := counts(t, pod)[inbound].OK
	var a answer
	must(t, request(t.Context(), at(pod, f, port), "/", &a))
	if a.peer() != f.client || counts(t, pod)[inbound].OK != before+1 {
		t.Errorf("%s: the application saw %s, and the proxy took %d connections, want %s and 1", f.name, a.Peer, counts(t, pod)[inbound].OK-before, f.client)
	}
}

// wantReason waits until the condition of a migrant's pod has the reason.
func (s *space) wantReason(t *testing.T, m migrant, want string) {
	t.Helper()
	pod := s.podOf(t, m)
	s.await(t, pod.Name, func(pod *corev1.Pod) error {
		if got := conditionOf(pod).Reason; got != want {
			return fmt.Errorf("the condition's reason is %q, want %q", got, want)
		}
		return nil
	})
}
