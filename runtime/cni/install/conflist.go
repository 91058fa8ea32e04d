package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
)

// conflist is a network configuration list as text, with the positions of its plugins. It is edited as text and never decoded and
// encoded again: so every byte that is not ours stays, and removing our entry gives the original text.
type conflist struct {
	data     []byte
	name     string
	versions []string
	start    int // offset behind the bracket that opens the plugins
	plugins  []element
}

// element is one plugin's configuration: data[start:end].
type element struct {
	start, end int
	kind       string
}

// errPluginsInDirectory means that a list's plugins are in a directory next to it (CNI 1.3's other way to chain).
var errPluginsInDirectory = errors.New("no plugins in the list itself")

// parseList parses a list. libcni, with which runtimes load lists, decides whether it is valid.
func parseList(data []byte) (conflist, error) {
	known, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		return conflist{}, err
	}
	l := conflist{data: data, name: known.Name}
	plugins := json.RawMessage(nil)
	err = walkObject(data, func(key string, value json.RawMessage, start int) error {
		switch key {
		case "cniVersion":
			var v string
			err := decode(key, value, &v)
			l.versions = append(l.versions, v)
			return err
		case "cniVersions":
			var more []string
			err := decode(key, value, &more)
			l.versions = append(l.versions, more...)
			return err
		case "plugins":
			plugins, l.start = value, start+1
		}
		return nil
	})
	switch {
	case err != nil:
		return conflist{}, err
	case l.name == "":
		return conflist{}, errors.New("no name")
	case plugins == nil:
		return l, errPluginsInDirectory
	}
	if err := l.locate(plugins); err != nil {
		return conflist{}, fmt.Errorf("plugins: %w", err)
	}
	return l, nil
}

// locate finds the positions of the plugins in their array.
func (l *conflist) locate(array json.RawMessage) error {
	dec := json.NewDecoder(bytes.NewReader(array))
	if _, err := dec.Token(); err != nil {
		return err
	}
	base := l.start - 1
	for dec.More() {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return err
		}
		var p struct {
			Type string `json:"type"`
		}
		if err := decode("plugin", raw, &p); err != nil {
			return err
		}
		end := base + int(dec.InputOffset())
		l.plugins = append(l.plugins, element{start: end - len(raw), end: end, kind: p.Type})
	}
	return nil
}

// withEntry returns the list's text with exactly one plugin of the entry's type, equal to the entry. A new entry is added at the end, with
// the same space as between the others. An existing one keeps its place, since others may be chained behind it.
func (l *conflist) withEntry(e entry) ([]byte, error) {
	ours := l.indicesOf(e.kind)
	if len(ours) == 0 {
		last := len(l.plugins) - 1
		gap := "," + string(l.data[l.start:l.plugins[0].start])
		if last > 0 {
			gap = string(l.data[l.plugins[last-1].end:l.plugins[last].start])
		}
		return splice(l.data, l.plugins[last].end, l.plugins[last].end, gap+string(e.text)), nil
	}
	first := l.plugins[ours[0]]
	if len(ours) == 1 && equal(l.data[first.start:first.end], e.text) {
		return l.data, nil
	}
	data := splice(l.data, first.start, first.end, string(e.text))
	if len(ours) == 1 {
		return data, nil
	}
	rest, err := parseList(data)
	if err != nil {
		return nil, err
	}
	return rest.removeAt(ours[1:]), nil
}

// withoutType returns the list's text without plugins of a type.
func (l *conflist) withoutType(kind string) []byte { return l.removeAt(l.indicesOf(kind)) }

// indicesOf returns the indices of the plugins of a type.
func (l *conflist) indicesOf(kind string) []int {
	var indices []int
	for i, p := range l.plugins {
		if p.kind == kind {
			indices = append(indices, i)
		}
	}
	return indices
}

// removeAt removes the plugins at some indices, each with the comma and space that separate it.
func (l *conflist) removeAt(indices []int) []byte {
	data := l.data
	for _, p := range slices.Backward(indices) {
		start, end := l.plugins[p].start, l.plugins[p].end
		switch {
		case p > 0:
			start = l.plugins[p-1].end
		case len(l.plugins) > len(indices):
			end = l.plugins[p+1].start
		}
		data = splice(data, start, end, "")
	}
	return data
}

// walkObject calls visit for each member of a valid JSON object, with the offset of its value. Of duplicate keys the last one counts,
// as for a runtime.
func walkObject(data []byte, visit func(key string, value json.RawMessage, start int) error) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if _, err := dec.Token(); err != nil {
		return err
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return err
		}
		name, _ := key.(string) // valid JSON has no other keys
		if err := visit(name, value, int(dec.InputOffset())-len(value)); err != nil {
			return err
		}
	}
	return nil
}

func decode(key string, value json.RawMessage, into any) error {
	if err := json.Unmarshal(value, into); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// equal reports whether two JSON texts mean the same: a project that rewrites the list may format our entry differently.
func equal(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

func splice(data []byte, start, end int, text string) []byte {
	var b strings.Builder
	b.Write(data[:start])
	b.WriteString(text)
	b.Write(data[end:])
	return []byte(b.String())
}
