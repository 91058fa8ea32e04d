package istio

import (
	"fmt"
	"maps"
	"strings"

	"sigs.k8s.io/yaml"
)

// keyConfig is the annotation with a pod's own ProxyConfig, proxyMetadata the field with environment variables.
const (
	keyConfig     = "proxy.istio.io/config"
	proxyMetadata = "proxyMetadata"
)

// proxyConfig is the mesh's defaultConfig merged with the pod's annotation.
func (m *Mesh) proxyConfig(annotations map[string]string) (map[string]any, error) {
	text, over := annotations[keyConfig], map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &over); err != nil {
		return nil, fmt.Errorf("annotation %s is no ProxyConfig in YAML: %w: %.80q", keyConfig, err, text)
	}
	config, err := merge(m.config.DefaultConfig, over)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", keyConfig, err)
	}
	return config, nil
}

// merge lays a ProxyConfig over another one as Istio does (MergeProxyConfig in pkg/config/mesh/mesh.go): field by field, and within
// proxyMetadata and proxyHeaders key by key.
func merge(base, over map[string]any) (map[string]any, error) {
	out := cloned(base)
	for field, value := range over {
		switch {
		case strings.Contains(field, "_"): // Istio takes both, though not at once
			return nil, fmt.Errorf("field %s: write it as in JSON, without _", field)
		case value == nil:
		case field == proxyMetadata, field == "proxyHeaders":
			inner, isMap := value.(map[string]any)
			if !isMap {
				return nil, fmt.Errorf("%s is %v, want a map", field, value)
			}
			both := cloned(out[field])
			maps.Copy(both, inner)
			out[field] = both
		default:
			out[field] = value
		}
	}
	for name, value := range cloned(out[proxyMetadata]) {
		if _, isText := value.(string); !isText {
			return nil, fmt.Errorf("%s: %s is %v, want a string in quotes", proxyMetadata, name, value)
		}
	}
	return out, nil
}

// cloned returns a copy of a map, empty if it is none.
func cloned(of any) map[string]any {
	out := map[string]any{}
	inner, _ := of.(map[string]any)
	maps.Copy(out, inner)
	return out
}
