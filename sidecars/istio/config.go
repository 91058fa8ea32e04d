package istio

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// keyConfig is the annotation with a pod's own ProxyConfig, proxyMetadata the field with environment variables, and binaryPath the field with the
// program that pilot-agent starts as Envoy.
const (
	keyConfig     = "proxy.istio.io/config"
	proxyMetadata = "proxyMetadata"
	binaryPath    = "binaryPath"
)

// proxyConfig is a mesh's defaultConfig merged with the objects for the pod and its annotation. variables are proxyMetadata as the injector writes them
// into the container, where the pod's object wins over its annotation. pilot-agent applies the annotation once more, so that this wins in all else
// (pilot/cmd/pilot-agent/config/config.go).
func proxyConfig(defaults map[string]any, objects proxyConfigs, annotations map[string]string) (config, variables map[string]any, err error) {
	over, err := overlay(annotations[keyConfig])
	if err != nil {
		return nil, nil, err
	}
	config = defaults
	for _, layer := range []map[string]any{objects.mesh.layer(), objects.namespace.layer(), over, objects.pod.layer()} {
		if config, err = merge(config, layer); err != nil {
			return nil, nil, fmt.Errorf("annotation %s: %w", keyConfig, err)
		}
	}
	variables = cloned(config[proxyMetadata])
	config, err = merge(config, over)
	return config, variables, err
}

// overlay parses a pod's annotation keyConfig: some fields of a ProxyConfig.
func overlay(text string) (map[string]any, error) {
	over := map[string]any{}
	if alias := aliasIn(text); alias != "" {
		return nil, fmt.Errorf("annotation %s: aliases (%.80s) are not followed, write what they stand for", keyConfig, alias)
	}
	if err := yaml.Unmarshal([]byte(text), &over); err != nil {
		return nil, fmt.Errorf("annotation %s is no ProxyConfig in YAML: %w: %.80q", keyConfig, err, text)
	}
	if program, isSet := over[binaryPath]; isSet {
		return nil, fmt.Errorf("annotation %s: %s is %s: which program runs is for the profile's image to say, take it out", keyConfig, binaryPath, short(program))
	}
	return over, nil
}

var anchors, aliases = regexp.MustCompile(`&[0-9A-Za-z_-]+`), regexp.MustCompile(`\*[0-9A-Za-z_-]+`)

// aliasIn returns an alias of a YAML text that has its anchor, too, or "": the parser writes each out, and a short text becomes gigabytes.
func aliasIn(text string) string {
	made := map[string]bool{}
	for _, anchor := range anchors.FindAllString(text, -1) {
		made[anchor[1:]] = true
	}
	found := aliases.FindAllString(text, -1)
	if i := slices.IndexFunc(found, func(alias string) bool { return made[alias[1:]] }); i >= 0 {
		return found[i]
	}
	return ""
}

func short(value any) string { return fmt.Sprintf("%.80s", fmt.Sprint(value)) }

// merge lays a ProxyConfig over another one as Istio does (MergeProxyConfig in pkg/config/mesh/mesh.go): field by field, and within
// proxyMetadata and proxyHeaders key by key.
func merge(base, over map[string]any) (map[string]any, error) {
	out := cloned(base)
	for field, value := range over {
		switch {
		case strings.Contains(field, "_"): // Istio takes both, though not at once
			return nil, fmt.Errorf("field %.80s: write it as in JSON, without _", field)
		case value == nil:
		case field == proxyMetadata, field == "proxyHeaders":
			inner, isMap := value.(map[string]any)
			if !isMap {
				return nil, fmt.Errorf("%s is %s, want a map", field, short(value))
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
			return nil, fmt.Errorf("%s: %.80s is %s, want a string in quotes", proxyMetadata, name, short(value))
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
