package e2e

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// editedPort is what a victim excludes while it is edited. Nobody dials it.
const editedPort = "3306"

func chaosVictims() []string {
	return []string{"victim-0", "victim-1", "victim-2", "victim-3", "victim-tproxy-0", "victim-tproxy-1"}
}

// chaosPods are the victims, and bystanders that nobody touches: one for each thing that a victim may ask for.
func (r *chaosRun) chaosPods() map[string]*corev1.Pod {
	pods := map[string]*corev1.Pod{}
	for i, name := range append(chaosVictims(), "bystander", "bystander-edited", "bystander-tproxy", "bystander-tproxy-edited") {
		annotations := map[string]string{}
		proxy := proxyContainer("istio-proxy")
		if strings.Contains(name, "tproxy") {
			annotations = tproxy()
			proxy = asRoot(proxyContainer("istio-proxy", "-transparent"), "NET_ADMIN")
		}
		if strings.HasSuffix(name, "edited") {
			annotations[keyExcludeOutbound] = editedPort
		}
		pods[name] = newPod(name, annotations, appContainer(), proxy, r.dialContainer(i))
	}
	return pods
}

// dialContainer dials the world from its first moment to its last, and says by the path which pod it is of.
func (r *chaosRun) dialContainer(number int) corev1.Container {
	to := families()[number%2].at(byte(1+number), uint16(r.worldPort))
	return corev1.Container{
		Name: "dial", Image: "localhost/testapp:1",
		Args: []string{"dial", "-report=0", "-every=30ms", "-timeout=1s", fmt.Sprintf("http://%s/$(POD_UID)", to)},
		Env: []corev1.EnvVar{{Name: "POD_UID", ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"},
		}}},
	}
}

// keep makes the pods that are missing, and remembers those that are there. An API server that is away changes nothing.
func (r *chaosRun) keep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	list, err := r.pods().List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	now := map[string]*corev1.Pod{}
	for i := range list.Items {
		now[list.Items[i].Name] = &list.Items[i]
	}
	r.mu.Lock()
	r.seen = now
	r.mu.Unlock()
	for name, pod := range r.specs {
		if now[name] == nil {
			_, _ = r.pods().Create(ctx, pod.DeepCopy(), metav1.CreateOptions{}) // again with the next look
		}
	}
	r.keepNamespaces(ctx)
}

// keepNamespaces remembers where the pods' network namespaces are, for a time when the runtime cannot be asked.
func (r *chaosRun) keepNamespaces(ctx context.Context) {
	list, err := r.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{
		State: &criv1.PodSandboxStateValue{State: criv1.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return
	}
	slices.SortFunc(list.Items, func(a, b *criv1.PodSandbox) int { return int(a.CreatedAt - b.CreatedAt) })
	for _, item := range list.Items {
		if item.GetMetadata().GetNamespace() != r.name {
			continue
		}
		r.mu.Lock()
		path, ok := r.sandbox[item.Id]
		r.mu.Unlock()
		if !ok {
			status, err := r.runtime.PodSandboxStatus(ctx, &criv1.PodSandboxStatusRequest{PodSandboxId: item.Id, Verbose: true})
			if err != nil {
				continue
			}
			s, err := readSandbox(item.Id, status.Info["info"])
			if err != nil || s.NetNS == "" {
				continue
			}
			path = s.here(r.cluster)
		}
		r.mu.Lock()
		r.sandbox[item.Id], r.netns[item.GetMetadata().GetUid()] = path, path
		r.mu.Unlock()
	}
}

// look gives a pod as it was last seen, and where its network namespace is.
func (r *chaosRun) look(name string) (pod *corev1.Pod, netns string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if pod = r.seen[name]; pod != nil {
		netns = r.netns[string(pod.UID)]
	}
	return pod, netns
}

// nameOf is for messages.
func (r *chaosRun) nameOf(uid string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, pod := range r.seen {
		if string(pod.UID) == uid {
			return fmt.Sprintf("%s (ready: %t, %s)", name, isReady(pod), conditionOf(pod).Reason)
		}
	}
	return uid + ", which has gone"
}

// bystanders are the pods that chaos does not touch.
func (r *chaosRun) bystanders() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(r.specs)), func(name string) bool { return slices.Contains(chaosVictims(), name) })
}

// watchBystanders wants the condition of a pod that nobody touched to stay as it was when the pod started. What the node says of its
// readiness may change with the node's own: it is only counted.
func (r *chaosRun) watchBystanders(context.Context) {
	for _, name := range r.bystanders() {
		pod, _ := r.look(name)
		if pod == nil {
			r.once(name+" gone", "the bystander %s is gone", name)
			continue
		}
		if now := reportOf(pod); now != r.reports[name] {
			r.once(name+now, "the bystander %s was %s, and is %s", name, r.reports[name], now)
		}
		r.mu.Lock()
		if r.notReady[name] == isReady(pod) {
			r.notReady[name] = !isReady(pod)
			if r.notReady[name] {
				r.flaps++
			}
		}
		r.mu.Unlock()
	}
}

// reportOf is what must not change about a pod that nobody touches.
func reportOf(pod *corev1.Pod) string {
	c, restarts := conditionOf(pod), int32(0)
	for _, status := range pod.Status.ContainerStatuses {
		restarts += status.RestartCount
	}
	return fmt.Sprintf("%s, %s %s since %s, restarted %d times", pod.UID, c.Status, c.Reason, c.LastTransitionTime.UTC().Format(time.TimeOnly), restarts)
}

// readyOrNot is nil for a pod that is ready.
func readyOrNot(pod *corev1.Pod) error {
	if !isReady(pod) {
		return fmt.Errorf("it is not ready: %s", pod.Status.Phase)
	}
	return nil
}

// once is fault for what may be seen again.
func (r *chaosRun) once(key, format string, args ...any) {
	r.mu.Lock()
	told := r.told[key]
	r.told[key] = true
	r.mu.Unlock()
	if !told {
		r.fault(format, args...)
	}
}
