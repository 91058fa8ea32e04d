package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// needsPodsOfTheKubelet skips a test where the agent takes its pods from the API server: by a kubelet before Kubernetes 1.37, or as the chart says.
func (s *space) needsPodsOfTheKubelet(t *testing.T) {
	t.Helper()
	kubelet := kubeversion.MustParseGeneric(s.nodeStatus(t).NodeInfo.KubeletVersion)
	if !kubelet.AtLeast(kubeversion.MustParseGeneric("1.37.0")) {
		t.Skip("a kubelet before Kubernetes 1.37 serves no pods")
	}
	ds, err := s.api.AppsV1().DaemonSets(agentName).Get(t.Context(), agentName, metav1.GetOptions{})
	must(t, err)
	if strings.Contains(strings.Join(ds.Spec.Template.Spec.Containers[0].Args, " "), "--pods-from=api") {
		t.Skip("the chart has the agent take its pods from the API server")
	}
	s.awaitKubeletsPods(t)
}

func (c *cluster) awaitKubeletsPods(t *testing.T) {
	t.Helper()
	eventually(t, "pods of the kubelet", func(ctx context.Context) error {
		m, err := c.readMetrics(ctx)
		if err == nil && m.sum(metricPrefix+"pod_source", `source="kubelet"`) != 1 {
			err = errors.New("they come from the API server")
		}
		return err
	})
}

// awaitKept waits until the agent uses what was kept from before an outage, and is asked before pods start, or does not. A pod that starts before that is
// programmed late, as it would be without an outage: its runtime does not wait for an agent.
func (c *cluster) awaitKept(t *testing.T, want bool) {
	t.Helper()
	eventually(t, fmt.Sprint("an agent that uses what was kept: ", want), func(ctx context.Context) error {
		m, err := c.readMetrics(ctx)
		if err != nil {
			return err
		}
		age, ready := m.sum(metricPrefix+"kept_objects_age_seconds"), m.sum(metricPrefix+"ready", `check="cache"`)
		if (age > 0) != want || (ready == 1) == want {
			return fmt.Errorf("it is of %v s; is the agent ready: %v", age, ready)
		}
		asked, knows := m.sum(metricPrefix+"nri_connected"), m.sum(metricPrefix+"pods", `state="programmed"`)
		if want && (asked != 1 || knows == 0) {
			return fmt.Errorf("the runtime asks it: %v; it knows %v pods", asked, knows)
		}
		return nil
	})
}

// What kubelets do otherwise than an API server: edits that come with the version of before, pods that end but stay, and restarts.
//
// Not parallel: it restarts daemons.
//
//e2e:rounds nri
func TestPodsOfTheKubeletAreFollowed(t *testing.T) {
	s := newSpace(t, nil)
	s.needsPodsOfTheKubelet(t)
	pod := s.startMesh(t, meshPod("edited", asked()))
	ended := newPod("ended", asked(), corev1.Container{Name: "app", Image: "localhost/testapp:1", Args: []string{"help"}})
	ended.Spec.RestartPolicy = corev1.RestartPolicyNever
	s.create(t, ended)
	for i, restart := range []func(){
		func() {},
		func() { s.restartDaemon(t, "kubelet") },
		func() { s.restartDaemon(t, "kube-apiserver") },
		func() { s.restartDaemon(t, "kube-apiserver"); s.restartDaemon(t, "kubelet") },
	} {
		restart()
		was := readDetails(t, s.await(t, pod.Name, isRunning)).SpecHash
		s.patchPod(t, pod.Name, fmt.Sprintf(`{"metadata":{"annotations":{"traffic.sidecar.istio.io/excludeOutboundPorts":"%d"}}}`, 9000+i))
		s.await(t, pod.Name, func(pod *corev1.Pod) error {
			d, err := detailsOf(pod)
			if err == nil && d.SpecHash == was {
				err = errors.New("its rules are those of before the edit")
			}
			return err
		})
		s.awaitKubeletsPods(t)
		next := s.startMesh(t, meshPod(fmt.Sprint("after-", i), asked()))
		wantInbound(t, next, families()[0], appPort, true)
	}
	// Once when it started, once for each of four edits, and once when its proxy was not waited for any more.
	if written := s.specsWritten(t, pod); len(slices.Compact(slices.Clone(written))) != 5 || len(written) > 6 {
		t.Errorf("rules of the specs %q were written, want five specs, of which one is written twice at most", written)
	}
}

// specsWritten are the hashes of what a pod asked for whenever its rules were written, one after the other.
func (s *space) specsWritten(t *testing.T, pod *corev1.Pod) (hashes []string) {
	t.Helper()
	for line := range strings.Lines(s.agentLog(t)) {
		if !strings.Contains(line, `"rules applied"`) {
			continue
		}
		if entry := decode[struct{ Pod, SpecHash string }](t, line); entry.Pod == s.name+"/"+pod.Name {
			hashes = append(hashes, entry.SpecHash)
		}
	}
	return hashes
}

func (s *space) patchPod(t *testing.T, name, patch string) {
	t.Helper()
	_, err := s.pods().Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

// outageDialers are pods that dial during an outage of the API server, from sandboxes that are made in it.
const outageDialers = 10

// endless makes a dialer dial without end.
func endless(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Spec.Containers[0].Args[1] = "-n=1000000"
	return pod
}

// An agent that starts while the API server is away knows its pods from the kubelet, and namespaces as they were seen last. The node remakes sandboxes,
// and starts a static pod: no first connection goes by.
//
// Not parallel: it takes the API server away.
//
//e2e:rounds nri
func TestAgentStartsWithoutTheAPIServer(t *testing.T) {
	s := newSpace(t, asked())
	s.needsPodsOfTheKubelet(t)
	caught := catchAll(t)
	pods, before := make([]*corev1.Pod, outageDialers), make([]sandbox, outageDialers)
	for i := range pods {
		s.create(t, endless(dialer(fmt.Sprint("dialer-", i), asked(), i, caught.port)))
	}
	for i := range pods {
		pods[i] = s.await(t, fmt.Sprint("dialer-", i), isRunning)
		before[i] = s.sandboxOf(t, pods[i])
	}
	agent := s.containerPID(t, s.agent(t), "agent")
	s.awaitKeptNamespace(t, agent)
	must(t, kc(t.Context(), "kill", "kube-apiserver"))
	back := sync.OnceFunc(func() { // for the tests behind this one, too
		ctx := context.WithoutCancel(t.Context())
		must(t, kc(ctx, "start", "kube-apiserver"))
		must(t, wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			return s.api.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil, nil
		}))
	})
	t.Cleanup(back)
	must(t, signal(agent, syscall.SIGKILL))
	s.awaitKept(t, true)
	for i := range before {
		s.killSandbox(t, before[i])
	}
	mirror := s.runStatic(t, endless(dialer("static", asked(), 1, caught.port)))
	for i := range pods {
		s.awaitContainer(t, pods[i].Name, before[i].ID)
	}
	s.awaitContainer(t, mirror, "")
	caught.wantNone(t)
	back()
	for i := range pods {
		s.await(t, pods[i].Name, func(pod *corev1.Pod) error {
			d, err := detailsOf(pod)
			if err == nil && d.Sandbox == before[i].ID {
				err = errors.New("its report is of the sandbox of before")
			}
			return err
		})
	}
	s.await(t, mirror, hasStatus(statusInitialized))
	s.awaitKept(t, false)
	caught.wantNone(t)
}

// awaitKeptNamespace waits until the agent has kept the space's namespace.
func (s *space) awaitKeptNamespace(t *testing.T, agent int) {
	t.Helper()
	eventually(t, "a namespace that is kept", func(context.Context) error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/run/%s/kept/namespaces.json", agent, agentName))
		if err == nil && !strings.Contains(string(text), strconv.Quote(s.name)) {
			err = errors.New("it is not there yet")
		}
		return err
	})
}

// awaitContainer waits until a container of a pod runs in another sandbox than one. It asks the runtime: the API server may be away.
func (s *space) awaitContainer(t *testing.T, pod, otherThan string) {
	t.Helper()
	eventually(t, "a container of "+pod, func(ctx context.Context) error {
		list, err := s.runtime.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{
			State:         &criv1.ContainerStateValue{State: criv1.ContainerState_CONTAINER_RUNNING},
			LabelSelector: map[string]string{"io.kubernetes.pod.name": pod, "io.kubernetes.pod.namespace": s.name},
		}})
		if err != nil {
			return err
		}
		for _, c := range list.Containers {
			if c.PodSandboxId != otherThan {
				return nil
			}
		}
		return errors.New("there is none")
	})
}
