package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	keyHoldSeconds = "pod-network-controller.istio.io/hold-seconds"
	proxyLate      = "ProxyLate"
)

// job is a pod whose only container dials the world n times from its first instruction on, and ends.
func job(name string, n int, args ...string) *corev1.Pod {
	argv := append([]string{"dial", fmt.Sprintf("-n=%d", n), "-timeout=20s", "-last=" + corev1.TerminationMessagePathDefault}, args...)
	pod := newPod(name, nil, corev1.Container{Name: "app", Image: "localhost/testapp:1", Args: argv})
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	return pod
}

// awaitJob waits until a job has ended, and returns what it says.
func (s *space) awaitJob(t *testing.T, name string) (said summary) {
	t.Helper()
	s.await(t, name, func(pod *corev1.Pod) error {
		for _, c := range pod.Status.ContainerStatuses {
			if end := c.State.Terminated; c.Name == "app" && everStarted(end) {
				return json.Unmarshal([]byte(end.Message), &said)
			}
		}
		return fmt.Errorf("it is %s", pod.Status.Phase)
	})
	return said
}

// A job that dials in its first moment is answered, by its proxy: no connection is too early.
//
//e2e:rounds nri
func TestHoldJobsDialAtOnce(t *testing.T) {
	t.Parallel()
	const jobs = 10
	for _, sample := range []string{"proxy-profile.yaml", "proxy-profile-nginx.yaml"} {
		t.Run(sample, func(t *testing.T) {
			t.Parallel()
			m := newManagedFrom(t, sample)
			to := "http://" + families()[0].at(1, worldPort).String() + "/"
			for i := range jobs {
				name := fmt.Sprintf("job-%d", i)
				m.create(t, job(name, 1, to))
				if said := m.awaitJob(t, name); said.OK != 1 || said.Failed != 0 {
					t.Errorf("%s: %+v", name, said)
				}
			}
		})
	}
}

// dialling opens connections to an address one after the other, each in a process of its own.
type dialling struct {
	mu       sync.Mutex
	opened   int
	refused  int
	reset    int // at the moment of a crash
	others   map[string]int
	cancel   context.CancelFunc
	finished sync.WaitGroup
}

// dialEvery opens a connection every so often, and lets none wait for another.
func dialEvery(t *testing.T, every time.Duration, to netip.AddrPort) *dialling {
	t.Helper()
	d := &dialling{others: map[string]int{}}
	var ctx context.Context
	ctx, d.cancel = context.WithCancel(t.Context())
	t.Cleanup(func() { d.cancel(); d.finished.Wait() })
	d.finished.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for ctx.Err() == nil {
			d.finished.Go(func() { d.dial(context.WithoutCancel(ctx), to) })
			<-tick.C
		}
	})
	return d
}

func (d *dialling) dial(ctx context.Context, to netip.AddrPort) {
	conn, err := (&net.Dialer{Timeout: 20 * time.Second}).DialContext(ctx, "tcp", to.String())
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil:
		d.opened++
		_ = conn.Close()
	case errors.Is(err, syscall.ECONNREFUSED):
		d.refused++
	case errors.Is(err, syscall.ECONNRESET):
		d.reset++
	default:
		d.others[err.Error()]++
	}
}

// A proxy that crashes again and again refuses nobody: connections wait for the next one, and none passes it by.
//
//e2e:rounds nri
func TestHoldCrashesRefuseNobody(t *testing.T) {
	t.Parallel()
	const crashes = 20
	m := newManaged(t)
	f := families()[0]
	m.create(t, newPod("crashes", nil, appContainer(), corev1.Container{
		Name: "dials", Image: "localhost/testapp:1",
		Args: []string{"dial", "-report", "200ms", "-every", "10ms", "-timeout", "20s", "http://" + f.at(1, worldPort).String() + "/"},
	}))
	pod := m.await(t, "crashes", isReadyNow)
	in := dialEvery(t, 10*time.Millisecond, at(pod, f, appPort))
	before := m.restarts(t, "crashes")
	for i := range crashes {
		must(t, syscall.Kill(m.containerPID(t, pod, managedProxy), syscall.SIGKILL))
		m.awaitSidecar(t, "crashes", func(status map[string]any) error {
			if status["ready"] != true {
				return fmt.Errorf("it is not ready: %v", status)
			}
			return equal(status["restarts"], before+int64(i)+1)
		})
		m.await(t, "crashes", isReadyNow)
	}
	in.cancel()
	in.finished.Wait()
	if in.refused > 0 || len(in.others) > 0 || in.reset > crashes {
		t.Errorf("inbound: %d opened, %d refused, %d reset, %v", in.opened, in.refused, in.reset, in.others)
	}
	must(t, m.eachDials(t.Context(), []*corev1.Pod{pod}, func(said summary) error {
		for text, n := range said.Errors {
			if strings.Contains(text, "refused") {
				t.Errorf("outbound: %d times %q", n, text)
			}
		}
		t.Logf("inbound: %d opened, %d reset; outbound: %+v", in.opened, in.reset, said)
		return nil
	}))
	m.wantProxied(t, pod)
}

func (m managed) restarts(t *testing.T, pod string) int64 {
	t.Helper()
	status, err := m.sidecar(t.Context(), pod)
	must(t, err)
	n, _ := status["restarts"].(int64)
	return n
}

// A proxy that never comes is waited for as long as the pod says, and then connections are refused, with an event.
//
//e2e:rounds nri
func TestHoldEndsWithoutAProxy(t *testing.T) {
	t.Parallel()
	m := newManaged(t, func(spec map[string]any) { spec["image"] = missingImage })
	to := "http://" + families()[0].at(1, worldPort).String() + "/"
	pod := job("waits", 2, to)
	pod.Annotations = map[string]string{keyHoldSeconds: "5"}
	m.create(t, pod)
	said := m.awaitJob(t, "waits")
	m.awaitEvent(t, "waits", proxyLate, "nobody listens on 15001 and 15006 after 5s")
	if said.OK != 0 || said.Failed != 2 {
		t.Errorf("%+v", said)
	}
	for text := range said.Errors {
		if !strings.Contains(text, "refused") {
			t.Errorf("not refused: %q", text)
		}
	}
	off := job("refused", 1, "-timeout=5s", to)
	off.Annotations = map[string]string{keyHoldSeconds: "0"}
	m.create(t, off)
	if said = m.awaitJob(t, "refused"); said.Failed != 1 || !strings.Contains(fmt.Sprint(said.Errors), "refused") {
		t.Errorf("with 0: %+v", said)
	}
}

// The proxy in a pod's spec listens on other ports: its pod runs, and says that connections are refused.
//
//e2e:rounds nri
func TestHoldProxyListensElsewhere_podSaysSo(t *testing.T) {
	t.Parallel()
	s := newSpace(t, asked())
	elsewhere := proxyContainer("istio-proxy")
	elsewhere.Image, elsewhere.Args = appContainer().Image, []string{"serve", "-http=8181"}
	s.create(t, newPod("silent", map[string]string{keyHoldSeconds: "3"}, appContainer(), elsewhere))
	s.awaitEvent(t, "silent", proxyLate, "nobody listens on 15001 and 15006 after 3s")
	s.await(t, "silent", func(pod *corev1.Pod) error {
		if c := conditionOf(pod); c.Reason != "NoListener" || c.Status != corev1.ConditionTrue {
			return fmt.Errorf("its condition is %s %s", c.Status, c.Reason)
		}
		return nil
	})
	s.awaitStatus(t, os.Getenv("KUBECONFIG"), 1, "no-listener", "nobody listens on 15001 and 15006: connections are refused")
}

// The proxy in a pod's spec may come five seconds after the application: no connection is refused.
//
//e2e:rounds nri
func TestHoldInjectedProxyComesLate(t *testing.T) {
	t.Parallel()
	for name, init := range map[string][]corev1.Container{
		"alone":          nil,
		"behind an init": {{Name: "first", Image: "localhost/testapp:1", Args: []string{"get", "-timeout=3s", "http://127.0.0.1:1/"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t, asked())
			pod := job("late", 5, "-every=100ms", "http://"+families()[0].at(1, worldPort).String()+"/")
			for i := range init { // it fails at once, and ends well all the same
				init[i].Image, init[i].Command, init[i].Args = "localhost/tools:1", []string{"sh", "-c"}, []string{"testapp get -timeout=3s http://" + families()[0].at(1, worldPort).String() + "/ || true"}
			}
			pod.Spec.InitContainers = init
			proxy := proxyContainer("istio-proxy", "-after=5s")
			pod.Spec.Containers = append(pod.Spec.Containers, proxy)
			began := time.Now()
			s.create(t, pod)
			said := s.awaitJob(t, "late")
			if said.OK != 5 || said.Failed != 0 || time.Since(began) < 4*time.Second {
				t.Errorf("%+v after %s", said, time.Since(began))
			}
		})
	}
}

// manyChoose is how many pods choose a profile at once, unless E2E_HOLD_PODS says otherwise. The full size is 60.
const manyChoose = 12

// Pods that run and choose a profile, all at once and under traffic, lose no connection on their way to the proxies.
//
//e2e:rounds nri
func TestHoldManyPodsChooseAtOnce(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	m.annotateSelf(t, map[string]any{keySidecar: nil})
	var pods []*corev1.Pod
	for i := range amount(t, "E2E_HOLD_PODS", manyChoose) {
		pods = append(pods, m.create(t, newPod(fmt.Sprintf("many-%d", i), nil, appContainer(), corev1.Container{
			Name: "dials", Image: "localhost/testapp:1",
			Args: []string{"dial", "-report", "200ms", "-every", "100ms", "-timeout", "20s", "http://" + families()[0].at(byte(1+i%200), worldPort).String() + "/"},
		})))
	}
	for i := range pods {
		pods[i] = m.await(t, pods[i].Name, isRunning)
	}
	last := pods[len(pods)-1:]
	m.awaitMore(t, last)
	m.annotateSelf(t, map[string]any{keySidecar: m.profile})
	for _, pod := range pods {
		m.awaitSidecar(t, pod.Name, isServing(0))
	}
	m.awaitMore(t, last)
	dialled := 0
	must(t, m.eachDials(t.Context(), pods, func(said summary) error {
		dialled += said.OK
		if said.Failed > 0 {
			t.Errorf("%d connections failed: %v", said.Failed, said.Errors)
		}
		return nil
	}))
	t.Logf("%d pods chose at once: %d connections", len(pods), dialled)
	m.wantProxied(t, pods[0])
}
