package istio

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Mesh is what the ConfigMaps of a control plane say about its proxies.
type Mesh struct {
	of           ControlPlane
	config       meshConfig
	values       values
	proxyConfigs []ProxyConfig // the oldest first
}

// meshConfig are the fields of Istio's MeshConfig that matter.
type meshConfig struct {
	TrustDomain, RootNamespace              string
	DefaultConfig                           map[string]any
	ProxyListenPort, ProxyInboundListenPort json.Number // Istio takes numbers in quotes, too
	EnablePrometheusMerge                   bool
	InboundTrafficPolicy                    struct{ Mode string }
	ExtensionProviders                      []struct {
		Opentelemetry struct{ ServiceAttributeEnrichment string }
	}
}

// values are the fields of the injector's values that matter.
type values struct {
	Revision string
	Global   struct {
		CAAddress, CAName, IstioNamespace, MeshID, Network, PilotCertProvider, TrustBundleName string

		LogAsJSON, MountMtlsCerts bool

		Logging      struct{ Level string }
		MultiCluster struct{ ClusterName string }
		STS          struct{ ServicePort json.Number }
		SDS          struct{ Token struct{ Aud string } }
		Proxy        struct {
			ClusterDomain, ComponentLogLevel, LogLevel, OutlierLogPath, Tracer string

			Lifecycle map[string]any
		}
	}
	Pilot struct {
		Env              map[string]any
		CRLConfigMapName string
	}
	SidecarInjectorWebhook struct {
		DefaultTemplates    []string
		RewriteAppHTTPProbe bool
	}
}

// DefaultNamespace is where a control plane is unless its profile says otherwise.
const DefaultNamespace = "istio-system"

// ControlPlane is what computes the configuration of Istio's proxies. An Istio without revisions has an empty one.
type ControlPlane struct {
	Revision  string `json:"revision,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// Sources are what proxies are computed of: the texts in a control plane's ConfigMaps, and objects of all namespaces.
type Sources struct {
	Of     ControlPlane `json:"of"`
	Mesh   string       `json:"mesh"`
	Values string       `json:"values"`

	ProxyConfigs []ProxyConfig `json:"proxyConfigs,omitempty"`
}

// ReadMesh reads and parses the ConfigMaps of a control plane. It takes the cluster's objects of kind ProxyConfig.
func ReadMesh(of ControlPlane, get func(namespace, name string) (*corev1.ConfigMap, error), objects ...ProxyConfig) (*Mesh, error) {
	s, err := Read(of, get)
	if err != nil {
		return nil, err
	}
	s.ProxyConfigs = objects
	return s.Parse()
}

// Read reads the two ConfigMaps of a control plane, which get returns by their names; nil is for a missing one.
func Read(of ControlPlane, get func(namespace, name string) (*corev1.ConfigMap, error)) (Sources, error) {
	of.Namespace = cmp.Or(of.Namespace, DefaultNamespace)
	texts := map[string]string{}
	for _, part := range []struct{ name, key string }{{"istio", "mesh"}, {"istio-sidecar-injector", "values"}} {
		name, key := part.name, part.key
		if of.Revision != "" {
			name += "-" + of.Revision
		}
		found, err := get(of.Namespace, name)
		switch {
		case err != nil:
			return Sources{}, fmt.Errorf("read ConfigMap %s/%s: %w", of.Namespace, name, err)
		case found == nil:
			return Sources{}, fmt.Errorf("there is no ConfigMap %s/%s: Istio's control plane with revision %q is missing (a tag of a revision has none), see spec.istio of the profile", of.Namespace, name, of.Revision)
		}
		text, has := found.Data[key]
		if !has {
			return Sources{}, fmt.Errorf("ConfigMap %s/%s has no key %s", of.Namespace, name, key)
		}
		texts[key] = text
	}
	return Sources{Of: of, Mesh: texts["mesh"], Values: texts["values"]}, nil
}

// Parse reads the texts.
func (s Sources) Parse() (*Mesh, error) {
	m, err := parse(s.Mesh, s.Values)
	if err != nil {
		return nil, fmt.Errorf("control plane of Istio in namespace %q, revision %q: %w", s.Of.Namespace, s.Of.Revision, err)
	}
	m.of, m.proxyConfigs = s.Of, sorted(s.ProxyConfigs)
	return m, nil
}

// parse reads the texts of the two keys. Its errors name the key and the value.
func parse(mesh, values string) (*Mesh, error) {
	m := &Mesh{config: meshConfig{EnablePrometheusMerge: true}}
	fields := map[string]any{}
	raw, err := yaml.YAMLToJSON([]byte(mesh))
	if err == nil {
		err = cmp.Or(json.Unmarshal(raw, &m.config), json.Unmarshal(raw, &fields))
	}
	if err != nil {
		return nil, fmt.Errorf("key mesh is no MeshConfig in YAML: %w: %.80q", err, mesh)
	}
	for _, field := range []string{"trust_domain", "default_config", "proxy_listen_port", "proxy_inbound_listen_port", "enable_prometheus_merge", "extension_providers"} {
		if _, isSet := fields[field]; isSet { // Istio takes both notations
			return nil, fmt.Errorf("key mesh: field %s: write it as in JSON, without _", field)
		}
	}
	if err := json.Unmarshal([]byte(values), &m.values); err != nil {
		return nil, fmt.Errorf("key values is not the injector's JSON: %w: %.80q", err, values)
	}
	provider := m.values.Global.PilotCertProvider // pkg/config/constants
	if !slices.Contains([]string{"istiod", "custom", "none"}, provider) && !strings.HasPrefix(provider, "k8s.io/") {
		return nil, fmt.Errorf("key values: global.pilotCertProvider is %q, want istiod, custom, none or k8s.io/SIGNER", provider)
	}
	if m.values.Pilot.Env["ENABLE_CLUSTER_TRUST_BUNDLE_API"] == true {
		return nil, errors.New("key values: pilot.env.ENABLE_CLUSTER_TRUST_BUNDLE_API is true: the root certificate is in no ConfigMap")
	}
	config, err := merge(nil, m.config.DefaultConfig)
	if err != nil {
		return nil, fmt.Errorf("key mesh: defaultConfig: %w", err)
	}
	m.config.DefaultConfig = config
	m.config.TrustDomain = cmp.Or(m.config.TrustDomain, "cluster.local") // pkg/config/mesh; it leaves no use for the value global.trustDomain
	return m, nil
}
