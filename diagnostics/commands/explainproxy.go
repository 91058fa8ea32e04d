package commands

import (
	"cmp"
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"istio-pod-network-controller/internal/intent"
	"istio-pod-network-controller/sidecars/istio"
)

// explainedProxy is the proxy that an agent with --sidecars starts for a pod. Field names are stable.
type explainedProxy struct {
	Profile string `json:"profile"`
	Image   string `json:"image,omitempty"`
	// Command has the arguments, too. The image's own is used if it is empty.
	Command []string `json:"command,omitempty"`
	Env     []string `json:"env,omitempty"`
	// NotHonoured is what Istio's injection would do for the pod and this proxy does not.
	NotHonoured []string `json:"notHonoured,omitempty"`
	// Unknown says why the rest is missing.
	Unknown string `json:"unknown,omitempty"`
}

// explainProxy returns the proxy of the profile that a pod chooses, or nil. The error is the pod's fault.
func explainProxy(w workload, ns *corev1.Namespace, from manifests) (*explainedProxy, error) {
	name, err := intent.ProxyProfile(&w.pod, ns)
	if err != nil || name == "" {
		return nil, nil //nolint:nilerr // agents without --sidecars do not read the annotation
	}
	out := &explainedProxy{Profile: name}
	spec, has := from.profiles[name]
	switch {
	case !has:
		out.Unknown = fmt.Sprintf("the ProxyProfile is not among the manifests: add what kubectl get proxyprofile %s -o yaml prints", name)
		return out, nil
	case spec.Shared != nil:
		out.Unknown = "it is shared by the pods of a node: see the DaemonSet that the chart's value proxies.shared makes"
		return out, nil
	}
	process := spec.Process()
	if process == nil {
		out.Unknown = "the ProxyProfile has none of container, istio and shared: write it anew if it is of an earlier build"
		return out, nil
	}
	if c := spec.Container; c != nil {
		out.Command = slices.Concat(c.Command, c.Args)
	}
	out.Image = process.Image
	var env []istio.Variable
	for _, e := range process.Env {
		env = append(env, istio.Variable{Name: e.Name, Value: cmp.Or(e.Value, e.FieldPath)})
	}
	if of := spec.Istio; of != nil {
		mesh, err := istio.ReadMesh(istio.ControlPlane{Revision: of.Revision, Namespace: of.Namespace}, from.configMap, from.proxyConfigs...)
		if err != nil {
			out.Unknown = err.Error()
			return out, nil //nolint:nilerr // it is no fault of the pod
		}
		next := of.Update.Handover
		proxy, err := mesh.Proxy(istio.Pod{Pod: w.running(), Network: spec.Network, Resources: process.Resources, Transparent: of.Transparent, Beside: next == nil || next.None == nil, Env: env})
		if err != nil {
			return out, fmt.Errorf("ProxyProfile %q: %w", name, err)
		}
		out.Command, env, out.NotHonoured = slices.Concat(proxy.Command, proxy.Args), proxy.Env, proxy.NotHonoured
	}
	for _, v := range env {
		out.Env = append(out.Env, v.Name+"="+v.Value)
	}
	return out, nil
}

// running returns the pod as it will be, with words in capitals for what only the cluster knows.
func (w workload) running() *corev1.Pod {
	pod := w.pod.DeepCopy()
	for field, word := range map[*string]string{
		&pod.Status.PodIP: "POD_IP", &pod.Status.HostIP: "HOST_IP", &pod.Spec.NodeName: "NODE", &pod.Spec.ServiceAccountName: "default",
	} {
		*field = cmp.Or(*field, word)
	}
	if w.kind != "Pod" {
		yes := true
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: path.Join(kinds()[w.kind], "v1"), Kind: w.kind, Name: pod.Name, Controller: &yes}}
		pod.GenerateName = pod.Name + "-"
		pod.Name = pod.GenerateName + "SUFFIX"
	}
	return pod
}

func (m manifests) configMap(namespace, name string) (*corev1.ConfigMap, error) {
	if found, has := m.configMaps[namespace+"/"+name]; has {
		return found, nil
	}
	return nil, fmt.Errorf("it is not among the manifests: add what kubectl -n %s get configmap %s -o yaml prints", namespace, name)
}
