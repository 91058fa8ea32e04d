package istio

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubelabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ProxyConfigKind is Istio's kind of objects that change the ProxyConfig of a mesh, a namespace or some pods.
var ProxyConfigKind = schema.GroupVersionKind{Group: "networking.istio.io", Version: "v1beta1", Kind: "ProxyConfig"}

// ProxyConfig is an object of that kind.
type ProxyConfig struct {
	Metadata struct {
		Namespace         string      `json:"namespace"`
		Name              string      `json:"name"`
		CreationTimestamp metav1.Time `json:"creationTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels,omitempty"`
		} `json:"selector"`
		Concurrency          *int32            `json:"concurrency,omitempty"`
		EnvironmentVariables map[string]string `json:"environmentVariables,omitempty"`
		Image                struct {
			ImageType string `json:"imageType,omitempty"`
		} `json:"image"`
	} `json:"spec"`
}

// layer returns the object's settings under the names that the mesh's ProxyConfig has for them. It is empty for nil.
func (c *ProxyConfig) layer() map[string]any {
	out := map[string]any{}
	if c == nil {
		return out
	}
	if c.Spec.Concurrency != nil {
		out["concurrency"] = *c.Spec.Concurrency
	}
	if len(c.Spec.EnvironmentVariables) > 0 {
		variables := map[string]any{}
		for name, value := range c.Spec.EnvironmentVariables {
			variables[name] = value
		}
		out[proxyMetadata] = variables
	}
	return out
}

// proxyConfigs are the objects that count for a pod: of each layer the oldest one (pilot/pkg/model/proxy_config.go). Each may be nil.
type proxyConfigs struct {
	mesh, namespace, pod *ProxyConfig
}

// proxyConfigsOf returns the objects for a pod, by its own labels: the injector adds its labels later.
func (m *Mesh) proxyConfigsOf(p Pod) (out proxyConfigs) {
	first := func(namespace string, is func(*ProxyConfig) bool) *ProxyConfig {
		for i := range m.proxyConfigs {
			if c := &m.proxyConfigs[i]; c.Metadata.Namespace == namespace && is(c) {
				return c
			}
		}
		return nil
	}
	forAll := func(c *ProxyConfig) bool { return len(c.Spec.Selector.MatchLabels) == 0 }
	root := cmp.Or(m.config.RootNamespace, DefaultNamespace)
	out.mesh = first(root, forAll)
	if p.Pod.Namespace != root {
		out.namespace = first(p.Pod.Namespace, forAll)
	}
	out.pod = first(p.Pod.Namespace, func(c *ProxyConfig) bool {
		return !forAll(c) && kubelabels.SelectorFromSet(c.Spec.Selector.MatchLabels).Matches(kubelabels.Set(p.Pod.Labels))
	})
	return out
}

// images are what the objects say of the proxy's image, which is the profile's.
func (c proxyConfigs) images() (out []string) {
	for _, of := range []*ProxyConfig{c.mesh, c.namespace, c.pod} {
		if of != nil && of.Spec.Image.ImageType != "" {
			out = append(out, "image.imageType of ProxyConfig "+of.Metadata.Namespace+"/"+of.Metadata.Name+" has no effect: the image is the profile's")
		}
	}
	return out
}

// sorted returns the objects as istiod orders them: the oldest first, and then by name.
func sorted(all []ProxyConfig) []ProxyConfig {
	return slices.SortedStableFunc(slices.Values(all), func(a, b ProxyConfig) int {
		return cmp.Or(a.Metadata.CreationTimestamp.Compare(b.Metadata.CreationTimestamp.Time),
			cmp.Compare(a.Metadata.Name, b.Metadata.Name), cmp.Compare(a.Metadata.Namespace, b.Metadata.Namespace))
	})
}
