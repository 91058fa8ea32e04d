// Package pairs picks values of a chart so that every two of their alternatives occur together in at least one set.
package pairs

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Parameter is a value of the chart, by its path, with what it may be.
type Parameter struct {
	Path         string
	Alternatives []any
}

// Schema is a JSON schema as it is written, without its references followed.
type Schema map[string]any

// Parse reads a values.schema.json.
func Parse(text []byte) (Schema, error) {
	var s Schema
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("read schema: %w", err)
	}
	return s, nil
}

// Parameters returns every value of the schema in the order of their paths. What it may be comes from the schema, for enums and booleans;
// for all others from samples, by path. A value that has neither is an error, so that no value is left out.
func (s Schema) Parameters(samples map[string][]any) ([]Parameter, error) {
	found, err := s.below("", s, samples)
	if err != nil {
		return nil, err
	}
	for path := range samples {
		if !slices.ContainsFunc(found, func(p Parameter) bool { return p.Path == path }) {
			return nil, fmt.Errorf("there are samples of %s, which the schema does not have", path)
		}
	}
	return found, nil
}

func (s Schema) below(prefix string, object map[string]any, samples map[string][]any) ([]Parameter, error) {
	properties, _ := object["properties"].(map[string]any)
	var found []Parameter
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		path, property := prefix+name, s.follow(properties[name])
		if IsOld(properties[name]) {
			continue
		}
		if alternatives, ok := samples[path]; ok {
			found = append(found, Parameter{path, alternatives})
			continue
		}
		if _, nested := property["properties"]; nested {
			inside, err := s.below(path+".", property, samples)
			if err != nil {
				return nil, err
			}
			found = append(found, inside...)
			continue
		}
		alternatives := choices(property)
		if alternatives == nil {
			return nil, fmt.Errorf("the schema does not list what %s may be: add samples of it", path)
		}
		found = append(found, Parameter{path, alternatives})
	}
	return found, nil
}

// IsOld reports whether a value is one of older charts, which a template refuses.
func IsOld(property any) bool {
	found, _ := property.(map[string]any)
	return found["$ref"] == "#/definitions/old"
}

// follow replaces a reference by what it refers to.
func (s Schema) follow(property any) map[string]any {
	found, _ := property.(map[string]any)
	if reference, ok := found["$ref"].(string); ok {
		definitions, _ := s["definitions"].(map[string]any)
		return s.follow(definitions[strings.TrimPrefix(reference, "#/definitions/")])
	}
	return found
}

// choices returns what an enum or a boolean may be, nil for others.
func choices(property map[string]any) []any {
	if listed, ok := property["enum"].([]any); ok {
		return listed
	}
	if property["type"] == "boolean" {
		return []any{false, true}
	}
	return nil
}
