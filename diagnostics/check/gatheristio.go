package check

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// istioNamespace is where Istio's objects are looked for.
const istioNamespace = "istio-system"

// envUntaint switches istiod's controller of node taints on.
const envUntaint = "PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS"

// readIstio reads what Istio's objects say. What is absent, or is not understood, says nothing.
func readIstio(ctx context.Context, g Gatherer, f *Facts) error {
	mesh, err := configMap(ctx, g, "istio")
	if err != nil {
		return err
	}
	values, err := configMap(ctx, g, "istio-sidecar-injector")
	if err != nil {
		return err
	}
	f.Istio.Found = mesh != nil || values != nil
	if mesh != nil {
		f.Istio.OutboundPort, f.Istio.InboundPort = meshPortsOf(mesh.Data["mesh"])
	}
	if values != nil {
		f.Istio.CNI = cniOf(values.Data["values"])
	}
	if !f.Istio.Found {
		return nil
	}
	istiod, err := g.Client.AppsV1().Deployments(istioNamespace).Get(ctx, "istiod", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range istiod.Spec.Template.Spec.Containers {
		f.Istio.Untaint = f.Istio.Untaint || isTrue(&istiod.Spec.Template.Spec.Containers[i], envUntaint)
	}
	return nil
}

// configMap returns one of Istio's, or nil if it does not exist.
func configMap(ctx context.Context, g Gatherer, name string) (*corev1.ConfigMap, error) {
	found, err := g.Client.CoreV1().ConfigMaps(istioNamespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return found, err
}

func meshPortsOf(text string) (outbound, inbound int) {
	var mesh struct {
		ProxyListenPort        int `json:"proxyListenPort"`
		ProxyInboundListenPort int `json:"proxyInboundListenPort"`
	}
	if yaml.Unmarshal([]byte(text), &mesh) != nil {
		return 0, 0
	}
	return mesh.ProxyListenPort, mesh.ProxyInboundListenPort
}

// cniOf returns pilot.cni.enabled of the injector's values, or istio_cni.enabled of older releases; nil if they do not say.
func cniOf(text string) *bool {
	var values struct {
		Pilot struct {
			CNI struct {
				Enabled *bool `json:"enabled"`
			} `json:"cni"`
		} `json:"pilot"`
		IstioCNI struct {
			Enabled *bool `json:"enabled"`
		} `json:"istio_cni"`
	}
	if json.Unmarshal([]byte(text), &values) != nil {
		return nil
	}
	if values.Pilot.CNI.Enabled != nil {
		return values.Pilot.CNI.Enabled
	}
	return values.IstioCNI.Enabled
}
