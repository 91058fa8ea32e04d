package xdsenvoy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoregistry"
	"sigs.k8s.io/yaml"
)

// parts are the parts of a bootstrap that have an effect here.
var parts = []string{"node", "admin", "dynamicResources", "dynamic_resources", "staticResources", "static_resources"}

// readBootstrap reads the agent's bootstrap.
func readBootstrap(path string) (*bootstrapv3.Bootstrap, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	b, err := parseBootstrap(text)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return b, nil
}

// parseBootstrap reads JSON as loosely as Envoy does, which takes it for YAML.
func parseBootstrap(text []byte) (*bootstrapv3.Bootstrap, error) {
	var whole map[string]any
	if err := yaml.Unmarshal(text, &whole); err != nil {
		return nil, err
	}
	kept := map[string]any{}
	for _, part := range parts {
		if v, ok := whole[part]; ok {
			kept[part] = hideUnknown(v)
		}
	}
	clean, err := json.Marshal(kept)
	if err != nil {
		return nil, err
	}
	b := &bootstrapv3.Bootstrap{}
	return b, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(clean, b)
}

// hideUnknown puts an empty message in the place of those whose type is not linked in. The name beside it still says what it was.
func hideUnknown(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if url, ok := v["@type"].(string); ok {
			if _, err := protoregistry.GlobalTypes.FindMessageByURL(url); err != nil {
				return map[string]any{"@type": "type.googleapis.com/google.protobuf.Struct", "value": map[string]any{"unknown": url}}
			}
		}
		for key := range v {
			v[key] = hideUnknown(v[key])
		}
	case []any:
		for i := range v {
			v[i] = hideUnknown(v[i])
		}
	}
	return v
}

// agentSocket finds the unix socket of a cluster.
func agentSocket(b *bootstrapv3.Bootstrap, cluster string) (string, error) {
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() != cluster {
			continue
		}
		for _, locality := range c.GetLoadAssignment().GetEndpoints() {
			for _, e := range locality.GetLbEndpoints() {
				if path := e.GetEndpoint().GetAddress().GetPipe().GetPath(); path != "" {
					return path, nil
				}
			}
		}
	}
	return "", fmt.Errorf("static cluster %q has no unix socket", cluster)
}

// adsOf finds the cluster of the aggregated stream, and whether it is incremental.
func adsOf(b *bootstrapv3.Bootstrap) (cluster string, incremental bool, err error) {
	ads := b.GetDynamicResources().GetAdsConfig()
	for _, s := range ads.GetGrpcServices() {
		if name := s.GetEnvoyGrpc().GetClusterName(); name != "" {
			return name, ads.GetApiType() == corev3.ApiConfigSource_DELTA_GRPC, nil
		}
	}
	return "", false, errors.New("no aggregated stream is configured")
}

// unixTarget is a path as grpc wants it.
func unixTarget(path string) string {
	if strings.HasPrefix(path, "/") {
		return "unix://" + path
	}
	return "unix:" + path
}
