package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// pried is what testapp's pry gets at: every process ID that it can guess, and every unix socket of the network namespace.
type pried struct {
	Processes []struct {
		Name string   `json:"name"`
		Ways []string `json:"ways"`
	} `json:"processes"`
	Sockets []string `json:"sockets"`
	Reached []string `json:"reached"`
}

// pryingPod has an application as root, as a user, and as root that may trace any process that it sees, with and without the pod's
// processes in one namespace.
func pryingPod(name string, sharing bool) *corev1.Pod {
	pod := plainPod(name)
	pod.Spec.ShareProcessNamespace = &sharing
	root, user, tracer := toolsContainer(), toolsContainer(), toolsContainer()
	root.Name, root.Args = "root", []string{"serve", "-http=8083"}
	user.Name, user.Args = "user", []string{"serve", "-http=8081"}
	id := int64(1000)
	user.SecurityContext = &corev1.SecurityContext{RunAsUser: &id, RunAsGroup: &id}
	tracer.Name, tracer.Args = "tracer", []string{"serve", "-http=8082"}
	tracer.SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_PTRACE", "KILL", "DAC_READ_SEARCH"}}}
	pod.Spec.Containers = append(pod.Spec.Containers, root, user, tracer)
	return pod
}

// Nothing in the application sees, signals, traces or reads the proxy, or reaches its sockets.
//
//e2e:rounds nri
func TestSidecarIsOutOfItsApplicationsReach(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	for name, sharing := range map[string]bool{"sharing": true, "apart": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := m.startManaged(t, pryingPod(name, sharing))
			for _, c := range pod.Spec.Containers[1:] {
				m.wantOutOfReach(t, pod, c.Name, sharing)
			}
			home := filepath.Join(m.node.NodeRoot, sidecarRoot, fmt.Sprintf("%s.%s", pod.UID, m.sandboxOf(t, pod).ID))
			files, err := os.ReadDir(filepath.Join(home, "shm"))
			must(t, err)
			if len(files) > 0 {
				t.Errorf("the application has written %v into the proxy's /dev/shm", files)
			}
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.containerPID(t, pod, managedProxy)))
			must(t, err)
			for _, want := range []string{"CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "Uid:\t1337\t1337"} {
				if !strings.Contains(string(status), want) {
					t.Errorf("the proxy's process has no %q:\n%s", want, status)
				}
			}
			m.wantProxied(t, pod)
		})
	}
}

// wantOutOfReach wants a container of the application to get at its own processes, and at nothing of the proxy.
func (m managed) wantOutOfReach(t *testing.T, pod *corev1.Pod, container string, sharing bool) {
	t.Helper()
	const script = `testapp pry; touch /dev/shm/app; find / -path /proc -prune -o \( -name 'haproxy.cfg*' -o -name '*sidecar*' -o -name 'handover*' \) -print;
		find /proc/[0-9]*/root/ -maxdepth 3 \( -name haproxy -o -name '*sidecar*' \)`
	out, err := m.run(t.Context(), command{namespace: m.name, pod: pod.Name, container: container, argv: []string{"sh", "-c", script + " 2>/dev/null; true"}})
	must(t, err)
	first, files, _ := strings.Cut(out, "\n")
	got := decode[pried](t, first)
	own := 0
	for _, p := range got.Processes {
		if p.Name != "testapp" && p.Name != "sh" && p.Name != "pause" {
			t.Errorf("%s gets at a process %q by %v", container, p.Name, p.Ways)
		}
		if p.Name == "testapp" && (len(p.Ways) == 7 || container != "tracer" && len(p.Ways) >= 4) { // Yama keeps others from tracing
			own++
		}
	}
	if own == 0 {
		t.Errorf("%s gets at not even its own processes, so it shows nothing: %+v", container, got.Processes)
	}
	if names := fmt.Sprint(got.Processes); sharing != strings.Contains(names, "pause") {
		t.Errorf("%s: the pod's processes are in one namespace: %t; it sees %s", container, sharing, names)
	}
	if len(got.Reached) > 0 || strings.Contains(strings.Join(got.Sockets, " "), "@") {
		t.Errorf("%s sees the sockets %q and reaches %q", container, got.Sockets, got.Reached)
	}
	if !strings.Contains(strings.Join(got.Sockets, " "), "handover") {
		t.Errorf("%s: the proxy's own socket is not among the network's %q, so they show nothing", container, got.Sockets)
	}
	if files != "" {
		t.Errorf("%s finds files of the proxy:\n%s", container, files)
	}
}

// An application that takes the proxy's ports while that restarts is not taken for it: the pod is not ready, nothing leaves it past the
// proxy, the ManagedProxy says who has the ports, and all is well again once they are free.
//
//e2e:rounds nri
func TestSidecarWhosePortsTheApplicationTakes(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	pod := plainPod("taken")
	taker := toolsContainer()
	taker.Name, taker.Args = "taker", nil
	taker.Command = []string{"sh", "-c", "until [ -e /tmp/go ]; do usleep 50000; done; until testapp serve -banner taker -http=15001,15006,15021; do usleep 20000; done"}
	pod.Spec.Containers = append(pod.Spec.Containers, taker)
	pod = m.startManaged(t, pod)
	inTaker := func(script string) error {
		_, err := m.run(t.Context(), command{namespace: m.name, pod: pod.Name, container: "taker", argv: []string{"sh", "-c", script}})
		return err
	}
	must(t, inTaker("touch /tmp/go"))
	eventually(t, "the application on the proxy's ports", func(ctx context.Context) error {
		status, err := m.sidecar(ctx, pod.Name)
		if err == nil {
			err = says(false, "user 0, listens on port 150", "user 1337")(status)
		}
		if pid, errFind := m.findContainerPID(ctx, pod, managedProxy); errFind == nil && err != nil && pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // the proxy was faster
		}
		return err
	})
	m.await(t, pod.Name, func(pod *corev1.Pod) error {
		if isReady(pod) {
			return errors.New("it is ready")
		}
		return nil
	})
	m.awaitProxyFailed(t, pod)
	f := families()[0]
	if out, err := m.tryFrom(t, pod, "get", "http://"+f.at(1, worldPort).String()+"/"); strings.Contains(out, `"world"`) {
		t.Errorf("outbound: the world answers, past the proxy: %s, error %v", out, err)
	}
	var a answer
	if err := request(t.Context(), at(pod, f, appPort), "/", &a); a.Banner == pod.Name {
		t.Errorf("inbound: the application's own port answers, past the proxy's: %+v, error %v", a, err)
	}
	if err := inTaker("killall testapp"); err != nil {
		t.Log(err) // the container may end with the application, and take this shell along; what counts is what follows
	}
	m.awaitSidecar(t, pod.Name, func(status map[string]any) error {
		epoch, _ := status["epoch"].(int64)
		return isServing(epoch)(status)
	})
	m.await(t, pod.Name, isReadyNow)
	m.wantProxied(t, pod)
}
