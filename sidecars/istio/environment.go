package istio

import (
	"regexp"
	"slices"
)

// environment has each name once.
type environment []Variable

func (e *environment) set(name, value string) {
	*e = append(slices.DeleteFunc(*e, func(v Variable) bool { return v.Name == name }), Variable{name, value})
}

func (e *environment) get(name string) string {
	for _, v := range *e {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

var reference = regexp.MustCompile(`\$(\$|\([^)]*\))`)

// expand replaces $(NAME) by the variable's value, as the kubelet does for injected containers: tracers are at $(HOST_IP):8126.
func (e *environment) expand(text string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		for _, v := range *e {
			if found == "$("+v.Name+")" {
				return v.Value
			}
		}
		if found == "$$" {
			return "$"
		}
		return found
	})
}
