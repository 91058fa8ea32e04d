package bugreport

import (
	"encoding/json"
	"regexp"
	"slices"
)

// taken stands where something was taken out.
const taken = "REDACTED"

// secret is a pattern of what must not leave the cluster. Its first group stays.
type secret struct {
	pattern *regexp.Regexp
	with    string
}

func secrets() []secret {
	return []secret{
		{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`), taken},
		{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?`), taken}, // a JSON Web Token
		{regexp.MustCompile(`(?i)((?:bearer|basic) )[A-Za-z0-9._~+/=-]{8,}`), "${1}" + taken},
		{regexp.MustCompile(`(?i)((?:password|passwd|token|secret|api[-_]?key)\\?["']?\s*[:=]\s*\\?["']?)[^\s"',}\\]+`), "${1}" + taken},
		{regexp.MustCompile(`(://[^/\s:@"]+:)[^/\s@"]+@`), "${1}" + taken + "@"}, // a password in an address
	}
}

// redactText takes secrets out of a text.
func redactText(text []byte) []byte {
	for _, s := range secrets() {
		text = s.pattern.ReplaceAll(text, []byte(s.with))
	}
	return text
}

// redactObject returns an object as JSON without the values of environment variables, what clients have left in annotations, and secrets.
func redactObject(object any) ([]byte, error) {
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return nil, err
	}
	prune(tree)
	text, err := json.MarshalIndent(tree, "", "  ")
	return redactText(text), err
}

// prune changes a decoded object in place.
func prune(tree any) {
	switch tree := tree.(type) {
	case []any:
		for _, element := range tree {
			prune(element)
		}
	case map[string]any:
		delete(tree, "managedFields")
		delete(tree, "kubectl.kubernetes.io/last-applied-configuration")
		for key, value := range tree {
			if variables, ok := value.([]any); ok && slices.Contains([]string{"env", "envs", "environment"}, key) {
				withoutValues(variables)
			}
			if variables, ok := value.(map[string]any); ok && key == "env" {
				for name := range variables {
					variables[name] = taken
				}
			}
			prune(value)
		}
	}
}

func withoutValues(variables []any) {
	for i, v := range variables {
		switch v := v.(type) {
		case map[string]any:
			if _, ok := v["value"]; ok {
				v["value"] = taken
			}
		case string: // NAME=VALUE
			variables[i] = taken
		}
	}
}
