package istio

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"istio-pod-network-controller/api/v1alpha1"
)

const (
	keyCPU         = "sidecar.istio.io/proxyCPU"
	keyCPULimit    = "sidecar.istio.io/proxyCPULimit"
	keyMemoryLimit = "sidecar.istio.io/proxyMemoryLimit"

	// maxQuantity bounds the digits of an amount, which are parsed and printed with all.
	maxQuantity = 32
)

// resourcesOf returns a profile's resources, with what the pod's annotations say instead: each bounds the proxy within the pod, whose owner may use
// up all that the pod has. Its errors name the annotation and the value.
func resourcesOf(p Pod) (out v1alpha1.Resources, err error) {
	out = p.Resources
	for _, of := range []struct {
		key  string
		into **resource.Quantity
	}{{keyCPU, &out.CPURequest}, {keyCPULimit, &out.CPULimit}, {keyMemoryLimit, &out.MemoryLimit}} {
		if *of.into, err = quantity(p.Pod, of.key, *of.into); err != nil {
			return out, err
		}
	}
	request, limit := out.CPURequest, out.CPULimit
	if request != nil && limit != nil && request.Cmp(*limit) > 0 {
		return out, fmt.Errorf("a CPU request of %s is more than the limit %s: see annotations %s and %s, and the profile's resources", request, limit, keyCPU, keyCPULimit)
	}
	return out, nil
}

// quantity returns what an annotation says, or otherwise.
func quantity(pod *corev1.Pod, key string, otherwise *resource.Quantity) (*resource.Quantity, error) {
	text, isSet := pod.Annotations[key]
	if !isSet {
		return otherwise, nil
	}
	value, err := resource.ParseQuantity(text[:min(len(text), maxQuantity)])
	if err != nil || value.Sign() <= 0 || len(text) > maxQuantity {
		return nil, fmt.Errorf("annotation %s is %.80q, want an amount such as 500m or 128Mi", key, text)
	}
	return &value, nil
}
