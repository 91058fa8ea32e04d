package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// finiteContainer is an application that asks the world until it is answered, and ends with an exit code.
func finiteContainer(code int) corev1.Container {
	c := toolsContainer()
	world := families()[0].at(1, worldPort).String()
	c.Command = []string{"sh", "-c", fmt.Sprintf("until testapp get http://%s/; do usleep 200000; done; exit %d", world, code)}
	c.Args = nil
	return c
}

// A Job is not kept from completing. Its proxy is told to finish, and has not failed.
//
//e2e:rounds nri
func TestSidecarEndsWithAPodThatFinishes(t *testing.T) {
	t.Parallel()
	m := newManaged(t)
	codes := m.proxyEnds(t)
	pod := newPod("job", nil, finiteContainer(0))
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	m.create(t, pod)
	m.await(t, "job", func(pod *corev1.Pod) error {
		if pod.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		return nil
	})
	select {
	case code := <-codes:
		if code != 0 && m.saysWhenApplicationsEnd(t) {
			t.Errorf("the proxy has ended with exit code %d: it was not told to finish", code)
		}
	case <-time.After(patience):
		t.Error("the runtime does not say that the proxy has ended")
	}
	m.awaitSidecar(t, "job", func(status map[string]any) error {
		if status["state"] != "Ended" || status["restarts"] != int64(0) {
			return fmt.Errorf("it says %v", status)
		}
		return nil
	})
	m.awaitNoProxies(t)
	list, err := m.api.CoreV1().Events(m.name).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + proxyFailed})
	must(t, err)
	if len(list.Items) > 0 {
		t.Errorf("events say that it has failed: %s", list.Items[0].Message)
	}
}

// saysWhenApplicationsEnd reports whether the runtime says by NRI that a container has ended by itself.
func (m managed) saysWhenApplicationsEnd(t *testing.T) bool {
	t.Helper()
	return !strings.HasPrefix(m.nodeStatus(t).NodeInfo.ContainerRuntimeVersion, "containerd://1.")
}

// proxyEnds returns a channel with the exit code of each of the namespace's proxies that ends from now on, as the runtime tells it.
func (m managed) proxyEnds(t *testing.T) <-chan int32 {
	t.Helper()
	events, err := m.runtime.GetContainerEvents(t.Context(), &criv1.GetEventsRequest{})
	must(t, err)
	codes := make(chan int32, 10)
	go func() {
		for {
			e, err := events.Recv()
			if err != nil {
				return
			}
			if e.GetContainerEventType() != criv1.ContainerEventType_CONTAINER_STOPPED_EVENT || e.GetPodSandboxStatus().GetMetadata().GetNamespace() != m.name {
				continue
			}
			for _, c := range e.GetContainersStatuses() {
				if c.GetId() == e.GetContainerId() && c.GetMetadata().GetName() == managedProxy {
					codes <- c.GetExitCode()
				}
			}
		}
	}()
	return codes
}

// awaitNoProxies waits until the runtime has no container of the namespace's proxies.
func (m managed) awaitNoProxies(t *testing.T) {
	t.Helper()
	eventually(t, "the end of the proxy", func(ctx context.Context) error {
		containers, err := m.proxies(ctx)
		if err == nil && len(containers) > 0 {
			err = fmt.Errorf("%d are left", len(containers))
		}
		return err
	})
}

// script makes the profile's proxy a shell's script.
func script(text string) func(spec map[string]any) {
	return func(spec map[string]any) {
		spec["image"], spec["command"] = "localhost/tools:1", []any{"sh", "-c", text}
		handsOver(spec, "none")
	}
}

// A proxy that uses more memory than its profile gives it ends alone, and the next one starts.
//
//e2e:rounds nri
func TestSidecarThatRunsOutOfMemoryComesBack(t *testing.T) {
	t.Parallel()
	const eats = `testapp serve -http=15021 & until [ -e /run/sidecar/eat ]; do usleep 100000; done
rm /run/sidecar/eat; exec awk 'BEGIN { s = "x"; while (1) s = s s }'`
	m := newManaged(t, script(eats), func(spec map[string]any) {
		spec["resources"] = map[string]any{"memoryLimit": "48Mi"}
		spec["readiness"] = map[string]any{"tcpPort": int64(15021)}
	})
	pod := m.startManaged(t, plainPod("hungry"))
	must(t, os.WriteFile(filepath.Join(m.home(t, pod), "run/eat"), nil, 0o600))
	m.awaitSidecar(t, "hungry", func(status map[string]any) error {
		return errors.Join(isServing(1)(status), says(true, "exit code 137", "OOMKilled")(status), equal(status["restarts"], 1))
	})
	m.awaitProxyFailed(t, pod)
	if now := m.await(t, "hungry", isReadyNow); now.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Error("the application was restarted")
	}
}

// home is the directory of a pod's proxies, as this program sees it.
func (m managed) home(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	return filepath.Join(m.node.NodeRoot, sidecarRoot, fmt.Sprintf("%s.%s", pod.UID, m.sandboxOf(t, pod).ID))
}

// A version that never answers leaves what runs alone, reaches no new pod, and says why. Nothing stays of pods that are deleted meanwhile: one
// with a proxy that drains, one that serves and one that hangs, and one whose only proxy hangs, since its profile has no other version.
//
//e2e:rounds nri
func TestSidecarThatHangsAtItsStart(t *testing.T) {
	t.Parallel()
	m := newManaged(t, drainsLong)
	pod := m.startManaged(t, plainPod("old"))
	held := dialEcho(t, at(pod, families()[0], appTCPPort))
	m.newVersion(t, "drains")
	m.awaitSidecar(t, "old", isServing(1))
	hanging := map[string]any{"image": "localhost/tools:1", "command": []any{"sh", "-c", "exec sleep 1000"}}
	m.patchProfile(t, map[string]any{"image": hanging["image"], "command": hanging["command"], "readiness": map[string]any{"startSeconds": 2}})

	late := m.startManaged(t, plainPod("late"))
	m.wantProxied(t, late)
	m.awaitSidecar(t, "late", says(true, "not ready within 2s", "is not known to work"))
	alone := newManaged(t, func(spec map[string]any) {
		maps.Copy(spec, hanging)
		spec["readiness"].(map[string]any)["startSeconds"] = int64(2)
	})
	only := alone.create(t, plainPod("only"))
	alone.awaitSidecar(t, "only", says(false, "not ready within 2s"))
	alone.awaitProxyFailed(t, only)
	if now := alone.await(t, "only", isRunning); isReady(now) || conditionOf(now).Reason != proxyNotReady {
		t.Errorf("the pod has the condition %+v", conditionOf(now))
	}
	m.awaitSidecar(t, "old", says(true, "not ready within 2s"))
	m.awaitCounts(t, map[string]any{"pods": int64(2), "upgraded": int64(0), "failed": int64(2), "nodesPaused": int64(1)})
	m.wantProxied(t, pod)
	m.awaitSidecar(t, "old", func(status map[string]any) error {
		if status["state"] != "Upgrading" {
			return fmt.Errorf("it says %v", status)
		}
		return nil
	})
	held.say(t, "in the middle of an upgrade")
	for _, name := range []string{"old", "late"} {
		must(t, m.pods().Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	must(t, alone.pods().Delete(t.Context(), "only", metav1.DeleteOptions{}))
	m.wantNothingLeft(t, []types.UID{pod.UID, late.UID})
	alone.wantNothingLeft(t, []types.UID{only.UID})
}

// A proxy that knows the destinations of both families takes the connections of both. The sample's HAProxy knows IPv4's only: the others
// are refused, and do not go past it.
//
//e2e:rounds nri
func TestSidecarTakesBothFamilies(t *testing.T) {
	t.Parallel()
	m := newManaged(t, func(spec map[string]any) {
		spec["image"], spec["command"] = proxyImage, []any{"/testproxy"}
		handsOver(spec, "none")
		delete(spec, "files")
	})
	pod := m.startManaged(t, plainPod("both"))
	for _, f := range families() {
		if !at(pod, f, appPort).IsValid() {
			continue // the cluster does not have it
		}
		wantInbound(t, pod, f, appPort, true)
		m.wantOutbound(t, pod, f.at(1, worldPort), true)
	}
}

// wantRefused wants connections of a family to be refused in both directions.
func (m managed) wantRefused(t *testing.T, pod *corev1.Pod, f family) {
	t.Helper()
	var a answer
	if to := at(pod, f, appPort); to.IsValid() {
		if err := request(t.Context(), to, "/", &a); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %s: error %v, %q answered", f.name, to, err, a.Banner)
		}
	}
	if out, err := m.tryFrom(t, pod, "get", "http://"+f.at(1, worldPort).String()+"/"); err == nil || !strings.Contains(out+err.Error(), "refused") {
		t.Errorf("%s: error %v, the world answered %s", f.name, err, out)
	}
}

// finishedProxy makes a pod whose proxy ends with code 0 and is not started again. It returns what wants it to stay so.
func finishedProxy(t *testing.T) (check func()) {
	t.Helper()
	m := newManaged(t, func(spec map[string]any) { spec["restartPolicy"] = "OnFailure" })
	pod := m.startManaged(t, plainPod("done"))
	must(t, syscall.Kill(m.containerPID(t, pod, managedProxy), syscall.SIGUSR1))
	check = func() {
		t.Helper()
		m.awaitSidecar(t, "done", func(status map[string]any) error {
			return errors.Join(says(false, "exit code 0", "not started again")(status), equal(status["restarts"], 0), equal(status["epoch"], 0))
		})
		containers, err := m.proxies(t.Context())
		must(t, err)
		if len(containers) != 1 || containers[0].GetState() != criv1.ContainerState_CONTAINER_EXITED {
			t.Errorf("after a proxy that has ended with code 0 there are %v", containers)
		}
	}
	check()
	return check
}

// strayCgroups wants no cgroup of a pod without a sandbox, and none of a container that the runtime does not have. uids are the pods'.
func (m managed) strayCgroups(ctx context.Context, uids []types.UID) error {
	sandboxes, err := m.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	containers, err := m.runtime.ListContainers(ctx, &criv1.ListContainersRequest{})
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, s := range sandboxes.GetItems() {
		known[s.GetId()], known["crio-"+s.GetId()], known["pod"+s.GetMetadata().GetUid()] = true, true, true // CRI-O names cgroups so
	}
	for _, c := range containers.GetContainers() {
		known[c.GetId()], known["crio-"+c.GetId()] = true, true
	}
	var stray []error
	return errors.Join(filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		_, uid, ofPod := strings.Cut(path, "/pod")
		uid, _, _ = strings.Cut(uid, "/")
		for i := range uids {
			if err == nil && d.IsDir() && ofPod && uid == string(uids[i]) && !known[d.Name()] {
				stray = append(stray, fmt.Errorf("cgroup %s is left", path))
			}
		}
		return nil // what is gone meanwhile is not left
	}), errors.Join(stray...))
}
