package istio

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Mesh is what the ConfigMaps of a control plane say about its proxies.
type Mesh struct {
	config meshConfig
	values values
}

// meshConfig are the fields of Istio's MeshConfig that matter.
type meshConfig struct {
	TrustDomain                             string
	DefaultConfig                           map[string]any
	ProxyListenPort, ProxyInboundListenPort json.Number // Istio takes numbers in quotes, too
	EnablePrometheusMerge                   bool
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

			HoldApplicationUntilProxyStarts bool
			Lifecycle                       map[string]any
		}
	}
	Pilot                  struct{ Env map[string]any }
	SidecarInjectorWebhook struct {
		DefaultTemplates    []string
		RewriteAppHTTPProbe bool
	}
}

// ParseMesh reads key mesh of ConfigMap istio[-REVISION] and key values of ConfigMap istio-sidecar-injector[-REVISION].
// Its errors name the key and the value.
func ParseMesh(mesh, values string) (*Mesh, error) {
	m := &Mesh{config: meshConfig{EnablePrometheusMerge: true}}
	if err := yaml.Unmarshal([]byte(mesh), &m.config); err != nil {
		return nil, fmt.Errorf("key mesh is no MeshConfig in YAML: %w: %.80q", err, mesh)
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
