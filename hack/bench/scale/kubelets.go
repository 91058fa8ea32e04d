package scale

import (
	"context"
	"errors"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"istio-pod-network-controller/hack/bench/table"
	"istio-pod-network-controller/test/standins/kubeletstandin"
)

// bySource measures with the nodes' pods from the API server, as agents took them before there was another source, and then from the kubelets. Each
// figure of the second is compared with that of the first.
func bySource(measure func(fromKubelet bool) ([]table.Row, error)) ([]table.Row, error) {
	rows, err := measure(false)
	if err != nil {
		return rows, err
	}
	again, err := measure(true)
	for i, r := range again {
		rows = append(rows, table.New(r.Name+", with pods from the kubelet, against from the API server", r.Unit, r.Ours, rows[i].Ours))
	}
	return rows, err
}

// kubelets serve the pods of nodes as the API server has them.
type kubelets struct {
	of   map[string]*kubeletstandin.Kubelet
	stop context.CancelFunc
}

// serveKubelets starts the kubelets of so many nodes, or returns nil if they are not wanted.
func serveKubelets(ctx context.Context, wanted bool, c kubernetes.Interface, dir string, nodes int) (*kubelets, error) {
	if !wanted {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	k := &kubelets{of: map[string]*kubeletstandin.Kubelet{}, stop: cancel}
	for i := range nodes {
		node := nodeName(i)
		k.of[node] = kubeletstandin.New(filepath.Join(dir, node+".sock"))
		if err := k.of[node].Start(ctx); err != nil {
			return k, err
		}
	}
	informer := informers.NewSharedInformerFactory(c, 0).Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(k); err != nil {
		return k, err
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return k, errors.New("the kubelets have not read their pods")
	}
	return k, nil
}

func (k *kubelets) end() {
	if k == nil {
		return
	}
	k.stop()
	for _, one := range k.of {
		one.Stop()
	}
}

// on calls f with the kubelet of a pod's node.
func (k *kubelets) on(obj any, f func(*kubeletstandin.Kubelet, *corev1.Pod)) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if pod, ok := obj.(*corev1.Pod); ok && k.of[pod.Spec.NodeName] != nil {
		f(k.of[pod.Spec.NodeName], pod)
	}
}

// OnAdd is a method of cache.ResourceEventHandler.
func (k *kubelets) OnAdd(obj any, _ bool) {
	k.on(obj, func(one *kubeletstandin.Kubelet, pod *corev1.Pod) { one.Put(pod) })
}

// OnUpdate is a method of cache.ResourceEventHandler. A kubelet sends no event of what others change.
func (k *kubelets) OnUpdate(before, now any) {
	k.on(now, func(one *kubeletstandin.Kubelet, pod *corev1.Pod) {
		if was, ok := before.(*corev1.Pod); ok && equality.Semantic.DeepEqual(was.Status.ContainerStatuses, pod.Status.ContainerStatuses) {
			one.PutSilently(pod)
			return
		}
		one.Put(pod)
	})
}

// OnDelete is a method of cache.ResourceEventHandler.
func (k *kubelets) OnDelete(obj any) {
	k.on(obj, func(one *kubeletstandin.Kubelet, pod *corev1.Pod) { one.End(pod, false) })
}
