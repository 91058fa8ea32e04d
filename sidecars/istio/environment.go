package istio

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

const (
	// maxText is the kernel's limit of one variable (MAX_ARG_STRLEN). All of proxyMetadata has to fit, too: its variables name each other, and
	// the owner of a pod writes them, so that a short annotation can stand for gigabytes.
	maxText = 128<<10 - 1
	// maxVariables bounds proxyMetadata.
	maxVariables = 256
)

// environment has each name once.
type environment []Variable

func (e *environment) set(name, value string) {
	*e = append(slices.DeleteFunc(*e, func(v Variable) bool { return v.Name == name }), Variable{name, value})
}

func (e *environment) get(name string) string {
	value, _ := e.lookup(name)
	return value
}

func (e *environment) lookup(name string) (value string, isSet bool) {
	for _, v := range *e {
		if v.Name == name {
			return v.Value, true
		}
	}
	return "", false
}

// add sets the variables of proxyMetadata, which may name variables that are set before them.
func (e *environment) add(metadata map[string]any) error {
	if len(metadata) > maxVariables {
		return fmt.Errorf("%s has %d variables, want %d at most", proxyMetadata, len(metadata), maxVariables)
	}
	room := maxText
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		value, fits := e.expand(text(metadata[name]), room)
		if !fits {
			return fmt.Errorf("%s is too long: with what $(NAME) stands for it has more than %d bytes", proxyMetadata, maxText)
		}
		room -= len(value)
		e.set(name, value)
	}
	return nil
}

// check returns why no program can be started with the variables.
func (e *environment) check() error {
	for _, v := range *e {
		switch {
		case v.Name == "", strings.ContainsAny(v.Name, "=\x00"):
			return fmt.Errorf("%.80q is no name of a variable: see %s (key mesh: defaultConfig, or annotation %s)", v.Name, proxyMetadata, keyConfig)
		case strings.Contains(v.Value, "\x00"):
			return fmt.Errorf("variable %.80s has a NUL character", v.Name)
		case len(v.Name)+len("=")+len(v.Value) > maxText:
			return fmt.Errorf("variable %.80s is too long: it has %d bytes, and the kernel starts no program with more than %d", v.Name, len(v.Value), maxText)
		}
	}
	return nil
}

var reference = regexp.MustCompile(`\$(\$|\([^)]*\))`)

// expand replaces $(NAME) by the variable's value, as the kubelet does for injected containers: tracers are at $(HOST_IP):8126. fits reports
// whether the text has no more bytes than there is room for.
func (e *environment) expand(text string, room int) (expanded string, fits bool) {
	var out strings.Builder
	end := 0
	for _, at := range reference.FindAllStringIndex(text, -1) {
		out.WriteString(text[end:at[0]] + e.resolve(text[at[0]:at[1]]))
		if end = at[1]; out.Len() > room {
			return "", false
		}
	}
	out.WriteString(text[end:])
	return out.String(), out.Len() <= room
}

// expandAll is expand for each text in a value of JSON, which stays a text, whatever a variable of the pod's owner has in it. Names of fields are
// not expanded. room is what is left, or less than 0 if that was not enough.
func (e *environment) expandAll(value any, room *int) any {
	switch v := value.(type) {
	case string:
		text, fits := e.expand(v, *room)
		if *room -= len(text); !fits {
			*room = -1
		}
		return text
	case []any:
		out := make([]any, len(v))
		for i, inner := range v {
			out[i] = e.expandAll(inner, room)
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for name, inner := range v {
			out[name] = e.expandAll(inner, room)
		}
		return out
	}
	return value
}

func (e *environment) resolve(found string) string {
	if found == "$$" {
		return "$"
	}
	if value, isSet := e.lookup(found[len("$(") : len(found)-len(")")]); isSet {
		return value
	}
	return found
}
